#include "files/attempt_files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
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

  absl::StatusOr<bool> RemoveStudy(
      absl::Time until, bool dry_run = false, const std::function<bool()>& over = [] { return false; }) {
    auto files = AttemptFiles::Open(runs_);
    if (!files.ok()) return files.status();
    return files->RemoveStudy(7, until, dry_run, over, removed_);
  }
  static absl::Time ChangeOf(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(lstat(path.c_str(), &found), 0) << path;
    return absl::TimeFromTimespec(found.st_ctim);
  }

  std::string base_, runs_, attempt_;
  FilesRemoved removed_;
  const absl::Time future_ = absl::Now() + absl::Hours(1);
};

TEST_F(AttemptFilesTest, EverythingOfAnAttemptIsRemovedWithTheEmptyDirectoryOfItsRun) {
  ASSERT_TRUE(Remove(FilesOf::kEverything).ok());
  EXPECT_FALSE(fs::exists(runs_ + "/7/12"));
  EXPECT_TRUE(fs::exists(runs_ + "/7"));
  EXPECT_EQ(removed_.directories, 1);
  EXPECT_EQ(removed_.files, 4);
  EXPECT_EQ(removed_.bytes, 100);
  ASSERT_TRUE(Remove(FilesOf::kEverything).ok()) << "a second call finds nothing";
  EXPECT_EQ(removed_.directories, 1);
}

TEST_F(AttemptFilesTest, TheDirectoryOfARunIsRemovedAlsoIfAnEarlierCallDidNotComeToIt) {
  fs::remove_all(attempt_);
  ASSERT_TRUE(Remove(FilesOf::kLogs).ok());
  ASSERT_TRUE(Remove(FilesOf::kEverything, /*dry_run=*/true).ok());
  EXPECT_TRUE(fs::exists(runs_ + "/7/12"));
  ASSERT_TRUE(Remove(FilesOf::kEverything).ok());
  EXPECT_FALSE(fs::exists(runs_ + "/7/12"));
}

TEST_F(AttemptFilesTest, TheDirectoryOfAStudyIsRemovedWhenItIsEmpty) {
  auto files = AttemptFiles::Open(runs_);
  ASSERT_TRUE(files.ok()) << files.status();
  files->RemoveEmptyStudy(7);
  EXPECT_TRUE(files->HasStudy(7).value());
  EXPECT_TRUE(fs::exists(attempt_));
  fs::remove_all(runs_ + "/7/12");
  files->RemoveEmptyStudy(7);
  EXPECT_FALSE(files->HasStudy(7).value());
  Write(runs_ + "/8", 1);
  EXPECT_FALSE(files->HasStudy(8).value()) << "a file";
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

TEST_F(AttemptFilesTest, ARemovalThatWasInterruptedIsContinued) {
  auto files = AttemptFiles::Open(runs_);
  ASSERT_TRUE(files.ok());
  int asked = 0;
  const auto remove = [&](int entries) {
    asked = 0;
    return files->Remove(attempt_, 7, 12, "token", FilesOf::kEverything, /*dry_run=*/false, removed_,
                         [&asked, entries] { return ++asked > entries; });
  };
  EXPECT_TRUE(absl::IsCancelled(remove(1)));
  EXPECT_EQ(removed_.directories, 0);
  EXPECT_TRUE(remove(100).ok());
  EXPECT_EQ(removed_.directories, 1);
  EXPECT_FALSE(fs::exists(runs_ + "/7/12"));
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
  EXPECT_TRUE(absl::IsUnavailable(RemoveStudy(future_).status()));
}

TEST_F(AttemptFilesTest, TheStudiesAreTheDirectoriesNamedByAnId) {
  for (const char* name :
       {"12", "007", "+8", "-9", "0", " 5", "4x", "allocations", "doctor-aB3xYz", "99999999999999999999"})
    fs::create_directory(runs_ + "/" + name);
  Write(runs_ + "/13", 1);
  fs::create_directory_symlink(base_, runs_ + "/14");
  EXPECT_THAT(AttemptFiles::Open(runs_)->ListStudies().value(), ElementsAre(7, 12));
  if (geteuid() != 0) return;  // only root can give a directory to another user
  ASSERT_EQ(chown((runs_ + "/12").c_str(), 65534, 65534), 0);
  EXPECT_THAT(AttemptFiles::Open(runs_)->ListStudies().value(), ElementsAre(7));
}

TEST_F(AttemptFilesTest, AStudyIsRemovedWithAllThatIsInIt) {
  fs::create_directories(runs_ + "/7/13/token/checkpoints");
  fs::create_directories(runs_ + "/7/13/checkpoints/step-8");
  Write(runs_ + "/7/13/checkpoints/step-8/model", 60);
  Write(runs_ + "/7/notes", 1);
  fs::create_directory_symlink(base_, runs_ + "/7/13/token/all");
  fs::create_directories(runs_ + "/8/1/token");
  EXPECT_TRUE(RemoveStudy(future_, /*dry_run=*/true).value());
  EXPECT_EQ(removed_.bytes, 161);
  EXPECT_TRUE(fs::exists(attempt_ + "/checkpoints/deep/model.bin"));
  removed_ = {};
  EXPECT_TRUE(RemoveStudy(future_).value());
  EXPECT_EQ(removed_.directories, 3) << "two attempts, and the checkpoints of a run";
  EXPECT_EQ(removed_.files, 7);
  EXPECT_EQ(removed_.bytes, 161);
  EXPECT_FALSE(fs::exists(runs_ + "/7"));
  EXPECT_TRUE(fs::exists(runs_ + "/8/1/token"));
  EXPECT_TRUE(fs::exists(base_ + "/precious")) << "a link was followed";
  EXPECT_FALSE(RemoveStudy(future_).value()) << "a second call finds nothing";
}

TEST_F(AttemptFilesTest, AStudyWithOneFileThatIsTooNewStays) {
  const std::string newest = attempt_ + "/checkpoints/deep/model.bin";
  // A time of modification in the past is no change in the past.
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, newest.c_str(), times, 0), 0);
  EXPECT_FALSE(RemoveStudy(ChangeOf(newest) - absl::Nanoseconds(1)).value());
  EXPECT_TRUE(fs::exists(newest));
  EXPECT_TRUE(fs::exists(attempt_ + "/rank-0.out"));
  EXPECT_EQ(removed_.files, 0);
  EXPECT_TRUE(RemoveStudy(ChangeOf(newest)).value());
}

TEST_F(AttemptFilesTest, ARemovalOfAStudyThatWasInterruptedIsContinued) {
  absl::Time until = absl::InfinitePast();
  for (const auto& entry : fs::recursive_directory_iterator(runs_ + "/7"))
    until = std::max(until, ChangeOf(entry.path()));
  const auto interrupted = RemoveStudy(until, /*dry_run=*/false, [&] { return removed_.files == 2; });
  EXPECT_TRUE(absl::IsCancelled(interrupted.status())) << interrupted.status();
  ASSERT_TRUE(fs::exists(runs_ + "/7"));
  // Make the directory newer than `until`, as a removal some time later does. The clock of the filesystem advances in
  // steps of some milliseconds.
  while (ChangeOf(runs_ + "/7") <= until) ASSERT_EQ(chmod((runs_ + "/7").c_str(), 0755), 0);
  EXPECT_TRUE(RemoveStudy(until).value());
  EXPECT_FALSE(fs::exists(runs_ + "/7"));
  EXPECT_EQ(removed_.files, 4);
  EXPECT_EQ(removed_.bytes, 100);
}

TEST_F(AttemptFilesTest, TheTimeOfADirectoryCountsWithoutFiles) {
  fs::remove_all(runs_ + "/7");
  fs::create_directories(runs_ + "/7/12/token");
  const absl::Time newest = std::max({ChangeOf(runs_ + "/7"), ChangeOf(runs_ + "/7/12"), ChangeOf(attempt_)});
  EXPECT_FALSE(RemoveStudy(newest - absl::Nanoseconds(1)).value());
  EXPECT_TRUE(fs::exists(attempt_));
  EXPECT_TRUE(RemoveStudy(newest).value());
  EXPECT_FALSE(fs::exists(runs_ + "/7"));
}

TEST_F(AttemptFilesTest, AStudyBehindALinkIsLeftAlone) {
  fs::rename(runs_ + "/7", base_ + "/moved");
  fs::create_directory_symlink(base_ + "/moved", runs_ + "/7");
  EXPECT_FALSE(RemoveStudy(future_).value());
  EXPECT_EQ(removed_.left, 1);
  EXPECT_THAT(removed_.why_left, HasSubstr("runs/7 is not a directory"));
  EXPECT_TRUE(fs::exists(attempt_ + "/rank-0.out"));
}

TEST_F(AttemptFilesTest, AStudyWithADirectoryOfAnotherUserIsLeftAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory to another user";
  for (const char* level : {"/7", "/7/12", "/7/12/token"}) {
    ASSERT_EQ(chown((runs_ + level).c_str(), 65534, 65534), 0);
    EXPECT_FALSE(RemoveStudy(future_).value());
    EXPECT_EQ(std::exchange(removed_.left, 0), 1) << level;
    EXPECT_THAT(removed_.why_left, HasSubstr(std::string(level) + " belongs to another user"));
    ASSERT_EQ(chown((runs_ + level).c_str(), 0, 0), 0);
  }
  EXPECT_EQ(removed_.files, 0);
  EXPECT_TRUE(fs::exists(attempt_ + "/rank-0.out"));
}

}  // namespace
}  // namespace scalelab::server
