#include "worker/code_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/worker/temp_dir.h"
#include "worker/node_info.h"

namespace scalelab::worker {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
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
  // Returns what the command for the difference prints, followed by its status, or by the output of `more`.
  std::string Difference(const std::string& more = "") {
    std::string line;
    for (const std::string& word : DiffCommand(SnapshotOf({dir_ / "train.py"}, hashes_).git_root())) {
      line += " '" + absl::StrReplaceAll(word, {{"'", "'\\''"}}) + "'";
    }
    return Shell(line + " " + more + (absl::StartsWith(more, "|") ? "" : "; echo status $?"));
  }

  TempDir dir_;
  FileHashes hashes_;
};

TEST_F(CodeSnapshotTest, HasTheFilesOfTheCommandAndTheirCommit) {
  if (!MakeRepository()) GTEST_SKIP() << "git is not installed";
  const std::string commit = Shell("git -C " + dir_.path() + " rev-parse HEAD");
  const std::vector<std::string> command{"python3", dir_ / "train.py", "--lr=0.1", "/none", "/"};
  const v1::CodeSnapshot snapshot = SnapshotOf(command, hashes_);
  ASSERT_EQ(snapshot.files_size(), 1);
  EXPECT_EQ(snapshot.files(0).path(), dir_ / "train.py");
  EXPECT_EQ(snapshot.files(0).sha256(), Sha256("print(1)\n"));
  EXPECT_EQ(snapshot.git_root(), dir_.path());
  EXPECT_EQ(snapshot.git_commit(), commit);
  EXPECT_FALSE(snapshot.has_git_dirty()) << "git has not been asked";
  const auto json = CodeJson(snapshot, "/runs/code.diff");
  EXPECT_EQ(json["files"][0]["path"], dir_ / "train.py");
  EXPECT_EQ(json["files"][0]["sha256"], Sha256("print(1)\n"));
  EXPECT_EQ(json["git"],
            nlohmann::ordered_json({{"root", dir_.path()}, {"commit", commit}, {"diff", "/runs/code.diff"}}));
  // Cases: a reference in a packed file, a detached head, and a linked worktree.
  Shell("git -C " + dir_.path() + " pack-refs --all");
  EXPECT_EQ(SnapshotOf(command, hashes_).git_commit(), commit);
  Shell("git -C " + dir_.path() + " worktree add -q -b other " + (dir_ / "linked"));
  EXPECT_EQ(SnapshotOf({dir_ / "linked/train.py"}, hashes_).git_commit(), commit);
  Shell("git -C " + dir_.path() + " checkout -q --detach");
  EXPECT_EQ(SnapshotOf(command, hashes_).git_commit(), commit);
}

// ~/.pyenv is a clone of pyenv.
TEST_F(CodeSnapshotTest, PrefersTheRepositoryOfAScriptToThatOfItsInterpreter) {
  const auto repository = [this](const std::string& name, char commit) {
    std::filesystem::create_directories(dir_ / (name + "/.git/refs/heads"));
    Append(dir_ / (name + "/.git/HEAD"), "ref: refs/heads/main\n");
    Append(dir_ / (name + "/.git/refs/heads/main"), std::string(40, commit) + "\n");
  };
  repository("pyenv", 'a');
  repository("project", 'b');
  Append(dir_ / "pyenv/python3.11", "\177ELF and machine code");
  std::filesystem::create_symlink("python3.11", dir_ / "pyenv/python");
  Append(dir_ / "project/train.py", "print(1)\n");
  Append(dir_ / "alone.py", "print(2)\n");
  const std::string python = dir_ / "pyenv/python", train = dir_ / "project/train.py";
  const v1::CodeSnapshot snapshot = SnapshotOf({python, train}, hashes_);
  EXPECT_EQ(snapshot.files_size(), 2);
  EXPECT_EQ(snapshot.git_root(), dir_ / "project");
  EXPECT_EQ(snapshot.git_commit(), std::string(40, 'b'));
  EXPECT_EQ(SnapshotOf({train, python}, hashes_).git_root(), dir_ / "project");
  // The first program, if no other file is in a repository.
  EXPECT_EQ(SnapshotOf({python, dir_ / "alone.py"}, hashes_).git_root(), dir_ / "pyenv");
  EXPECT_EQ(SnapshotOf({dir_ / "alone.py", python}, hashes_).git_commit(), std::string(40, 'a'));
}

TEST_F(CodeSnapshotTest, FindsTheCommitOfABranchAfterManyOtherReferences) {
  Append(dir_ / "train.py", "print(1)\n");
  std::filesystem::create_directories(dir_ / ".git");
  Append(dir_ / ".git/HEAD", "ref: refs/heads/work\n");
  std::string packed = "# pack-refs with: peeled fully-peeled sorted \n";
  for (int i = 0; i < 60'000; ++i)
    absl::StrAppend(&packed, std::string(40, 'a'), " refs/heads/branch-", i, "\n");
  const std::string commit(40, 'b');
  absl::StrAppend(&packed, commit, " refs/heads/work\n", std::string(40, 'c'), " refs/heads/work-2\n");
  ASSERT_GT(packed.size(), size_t{3} << 20);
  Append(dir_ / ".git/packed-refs", packed);
  EXPECT_EQ(SnapshotOf({dir_ / "train.py"}, hashes_).git_commit(), commit);
}

TEST_F(CodeSnapshotTest, TheDifferenceIsThatOfTheWorkingTree) {
  if (!MakeRepository()) GTEST_SKIP() << "git is not installed";
  EXPECT_EQ(Difference(), "status 0") << "no difference";
  Append(dir_ / "train.py", "print(2)\n");
  EXPECT_THAT(Difference(), AllOf(HasSubstr("+print(2)"), EndsWith("status 0")));
}

TEST_F(CodeSnapshotTest, ADifferenceIsCutAfter4MiBAndThatIsNoFailure) {
  if (!MakeRepository()) GTEST_SKIP() << "git is not installed";
  Append(dir_ / "train.py", std::string(5 << 20, 'x'));
  EXPECT_EQ(Difference("| wc -c"), "4194304");
  EXPECT_THAT(Difference("> /dev/null"), "status 0");
}

// Otherwise a repository that git refuses to read would count as one without changes.
TEST_F(CodeSnapshotTest, AFailureOfGitIsAFailureOfTheCommand) {
  if (!MakeRepository()) GTEST_SKIP() << "git is not installed";
  Append(dir_ / "train.py", "print(2)\n");
  Shell("rm -r " + (dir_ / ".git/objects"));
  EXPECT_EQ(Difference("2> /dev/null"), "status 1");
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
  EXPECT_EQ(SnapshotOf({"python3", "train.py", "-c", "/"}, hashes_).ByteSizeLong(), 0u);
  EXPECT_EQ(SnapshotOf({}, hashes_).git_root(), "");
  Append(dir_ / "a", "x");
  EXPECT_EQ(SnapshotOf({dir_ / "a"}, hashes_).git_root(), "");
  EXPECT_FALSE(CodeJson(SnapshotOf({dir_ / "a"}, hashes_), "").contains("git"));
}

}  // namespace
}  // namespace scalelab::worker
