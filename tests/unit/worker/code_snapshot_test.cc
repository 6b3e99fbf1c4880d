#include "worker/code_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/unit/worker/temp_dir.h"
#include "worker/node_info.h"

namespace scalelab::worker {
namespace {

using ::testing::HasSubstr;

// Executes a command of the shell. Returns its output without the last line break.
std::string Shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string text(4096, '\0');
  text.resize(fread(text.data(), 1, text.size(), pipe));
  pclose(pipe);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class CodeSnapshotTest : public ::testing::Test {
 protected:
  // Makes a repository with one commit. Returns false without git.
  bool MakeRepository() {
    Append(dir_ / "train.py", "print(1)\n");
    return system(("cd " + dir_.path() +
                   " && git init -q && git add train.py && git -c user.name=a -c user.email=a@b commit -qm "
                   "first")
                      .c_str()) == 0;
  }
  TempDir dir_;
  FileHashes hashes_;
};

TEST_F(CodeSnapshotTest, HasTheFilesOfTheCommandAndTheirCommit) {
  if (!MakeRepository()) GTEST_SKIP() << "git is not installed";
  const std::string commit = Shell("git -C " + dir_.path() + " rev-parse HEAD");
  const std::vector<std::string> command{"python3", dir_ / "train.py", "--lr=0.1", "/none", "/"};
  const CodeSnapshot snapshot = SnapshotOf(command, hashes_);
  ASSERT_EQ(snapshot.json["files"].size(), 1u);
  EXPECT_EQ(snapshot.json["files"][0]["path"], dir_ / "train.py");
  EXPECT_EQ(snapshot.json["files"][0]["sha256"], Sha256("print(1)\n"));
  EXPECT_EQ(snapshot.json["git"]["root"], dir_.path());
  EXPECT_EQ(snapshot.json["git"]["commit"], commit);
  // A reference in a packed file, a detached head, and a linked worktree.
  Shell("git -C " + dir_.path() + " pack-refs --all");
  EXPECT_EQ(SnapshotOf(command, hashes_).json["git"]["commit"], commit);
  Shell("git -C " + dir_.path() + " worktree add -q -b other " + (dir_ / "linked"));
  EXPECT_EQ(SnapshotOf({dir_ / "linked/train.py"}, hashes_).json["git"]["commit"], commit);
  Shell("git -C " + dir_.path() + " checkout -q --detach");
  EXPECT_EQ(SnapshotOf(command, hashes_).json["git"]["commit"], commit);
}

TEST_F(CodeSnapshotTest, TheDifferenceIsThatOfTheWorkingTree) {
  if (!MakeRepository()) GTEST_SKIP() << "git is not installed";
  Append(dir_ / "train.py", "print(2)\n");
  std::string line;
  for (const std::string& word : DiffCommand(SnapshotOf({dir_ / "train.py"}, hashes_).git_root))
    line += "'" + word + "' ";
  EXPECT_THAT(Shell(line), HasSubstr("+print(2)"));
}

TEST_F(CodeSnapshotTest, AFileIsReadAgainAfterItHasChanged) {
  Append(dir_ / "a", "one");
  EXPECT_EQ(hashes_.Of(dir_ / "a"), Sha256("one"));
  Append(dir_ / "a", " two");
  EXPECT_EQ(hashes_.Of(dir_ / "a"), Sha256("one two"));
  EXPECT_EQ(hashes_.Of(dir_.path()), "") << "a directory";
  EXPECT_EQ(hashes_.Of(dir_ / "none"), "");
}

TEST_F(CodeSnapshotTest, IsEmptyForCommandsWithoutFiles) {
  EXPECT_TRUE(SnapshotOf({"python3", "train.py", "-c", "/"}, hashes_).json.empty());
  EXPECT_EQ(SnapshotOf({}, hashes_).git_root, "");
  Append(dir_ / "a", "x");
  EXPECT_FALSE(SnapshotOf({dir_ / "a"}, hashes_).json.contains("git"));
}

}  // namespace
}  // namespace scalelab::worker
