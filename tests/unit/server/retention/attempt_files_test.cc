#include "server/retention/attempt_files.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class AttemptFilesTest : public ::testing::Test {
 protected:
  AttemptFilesTest() {
    std::string pattern = (fs::temp_directory_path() / "scalelab-runs-XXXXXX").string();
    base_ = mkdtemp(pattern.data());
    runs_ = base_ + "/runs";
    attempt_ = runs_ + "/7/12/token";
    fs::create_directories(attempt_ + "/checkpoints/deep");
    Write(attempt_ + "/rank-0.out", 10);
    Write(attempt_ + "/rank-0.err", 20);
    Write(attempt_ + "/events-0.jsonl", 30);
    Write(attempt_ + "/checkpoints/deep/model.bin", 40);
    Write(base_ + "/precious", 50);
  }
  ~AttemptFilesTest() override { fs::remove_all(base_); }
  static void Write(const std::string& path, size_t bytes) { std::ofstream(path) << std::string(bytes, 'x'); }
  absl::Status Remove(FilesOf what, bool dry_run = false) {
    return RemoveAt(attempt_, "token", what, dry_run);
  }
  absl::Status RemoveAt(const std::string& directory, const std::string& token,
                        FilesOf what = FilesOf::kEverything, bool dry_run = false) {
    auto files = AttemptFiles::Open(runs_);
    if (!files.ok()) return files.status();
    return files->Remove(directory, 7, 12, token, what, dry_run, removed_);
  }

  std::string base_, runs_, attempt_;
  FilesRemoved removed_;
};

TEST_F(AttemptFilesTest, EverythingOfAnAttemptIsRemovedWithItsEmptyParents) {
  ASSERT_TRUE(Remove(FilesOf::kEverything).ok());
  EXPECT_FALSE(fs::exists(runs_ + "/7"));
  EXPECT_TRUE(fs::exists(runs_));
  EXPECT_EQ(removed_.directories, 1);
  EXPECT_EQ(removed_.files, 4);
  EXPECT_EQ(removed_.bytes, 100);
  ASSERT_TRUE(Remove(FilesOf::kEverything).ok()) << "a second call finds nothing";
  EXPECT_EQ(removed_.directories, 1);
}

TEST_F(AttemptFilesTest, AnotherAttemptOfTheRunStays) {
  fs::create_directories(runs_ + "/7/12/other");
  ASSERT_TRUE(Remove(FilesOf::kEverything).ok());
  EXPECT_FALSE(fs::exists(attempt_));
  EXPECT_TRUE(fs::exists(runs_ + "/7/12/other"));
}

TEST_F(AttemptFilesTest, LogsAreTheOutputFilesOfRanksOnly) {
  for (const char* name : {"/rank-.out", "/rank-1.log", "/rank-x.err", "/xrank-1.out"})
    Write(attempt_ + name, 1);
  fs::create_directories(attempt_ + "/rank-3.out");
  Write(attempt_ + "/checkpoints/rank-5.out", 1);
  Write(attempt_ + "/rank-128.err", 7);
  ASSERT_TRUE(Remove(FilesOf::kLogs).ok());
  EXPECT_EQ(removed_.files, 3);
  EXPECT_EQ(removed_.bytes, 37);
  EXPECT_FALSE(fs::exists(attempt_ + "/rank-0.out"));
  for (const char* name : {"/rank-.out", "/rank-1.log", "/rank-x.err", "/xrank-1.out", "/rank-3.out",
                           "/events-0.jsonl", "/checkpoints/rank-5.out", "/checkpoints/deep/model.bin"}) {
    EXPECT_TRUE(fs::exists(attempt_ + name)) << name;
  }
}

TEST_F(AttemptFilesTest, ADryRunRemovesNothing) {
  ASSERT_TRUE(Remove(FilesOf::kEverything, /*dry_run=*/true).ok());
  EXPECT_EQ(removed_.files, 4);
  EXPECT_EQ(removed_.bytes, 100);
  EXPECT_TRUE(fs::exists(attempt_ + "/checkpoints/deep/model.bin"));
}

TEST_F(AttemptFilesTest, LinksInAnAttemptAreRemovedAndNotFollowed) {
  fs::create_symlink(base_ + "/precious", attempt_ + "/link");
  fs::create_directory_symlink(base_, attempt_ + "/checkpoints/all");
  fs::create_hard_link(base_ + "/precious", attempt_ + "/second-name");
  ASSERT_EQ(mkfifo((attempt_ + "/fifo").c_str(), 0600), 0);
  ASSERT_TRUE(Remove(FilesOf::kEverything).ok());
  EXPECT_FALSE(fs::exists(attempt_));
  EXPECT_TRUE(fs::exists(base_ + "/precious"));
  EXPECT_EQ(removed_.bytes, 100) << "a file with a second name takes its space still";
}

TEST_F(AttemptFilesTest, AnAttemptBehindALinkIsLeftAlone) {
  for (const char* level : {"/7", "/7/12", "/7/12/token"}) {
    const std::string moved = base_ + "/moved";
    fs::rename(runs_ + level, moved);
    fs::create_directory_symlink(moved, runs_ + level);
    ASSERT_TRUE(Remove(FilesOf::kEverything).ok());
    EXPECT_EQ(std::exchange(removed_.left, 0), 1) << level;
    EXPECT_THAT(removed_.why_left, HasSubstr("contains a link"));
    fs::remove(runs_ + level);
    fs::rename(moved, runs_ + level);
  }
  EXPECT_TRUE(fs::exists(attempt_ + "/checkpoints/deep/model.bin"));
}

TEST_F(AttemptFilesTest, APathThatIsNotOfTheAttemptIsLeftAlone) {
  const std::pair<std::string, std::string> wrong[] = {{base_ + "/elsewhere/7/12/token", "token"},
                                                       {runs_ + "/7/13/token", "token"},
                                                       {runs_ + "/7/12/..", ".."},
                                                       {runs_ + "/7/12/.", "."},
                                                       {runs_ + "/7/12/", ""},
                                                       {runs_ + "/7/12/a/b", "a/b"},
                                                       {"", "token"}};
  for (const auto& [directory, token] : wrong) {
    ASSERT_TRUE(RemoveAt(directory, token).ok()) << directory;
    EXPECT_EQ(std::exchange(removed_.left, 0), 1) << directory;
  }
  EXPECT_TRUE(fs::exists(attempt_ + "/rank-0.out"));
}

TEST_F(AttemptFilesTest, AnAttemptOfAnotherUserIsLeftAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory to another user";
  ASSERT_EQ(chown(attempt_.c_str(), 65534, 65534), 0);
  ASSERT_TRUE(Remove(FilesOf::kEverything).ok());
  EXPECT_EQ(removed_.left, 1);
  EXPECT_THAT(removed_.why_left, HasSubstr("belongs to another user"));
  EXPECT_TRUE(fs::exists(attempt_ + "/rank-0.out"));
}

TEST_F(AttemptFilesTest, ADirectoryThatIsTooDeepIsReportedAndTheRestStays) {
  std::string deep = attempt_;
  for (int i = 0; i < 80; ++i) fs::create_directory(deep += "/d");
  const absl::Status status = Remove(FilesOf::kEverything);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("too deep"));
}

TEST_F(AttemptFilesTest, AMissingDirectoryOfRunsIsReported) {
  fs::remove_all(runs_);
  EXPECT_TRUE(absl::IsUnavailable(Remove(FilesOf::kEverything)));
}

}  // namespace
}  // namespace scalelab::server
