#include "agent/user_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace scalelab::agent {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class UserFiles : public testing::Test {
 protected:
  UserFiles() {
    std::string pattern = testing::TempDir() + "user-files-XXXXXX";
    root_ = mkdtemp(pattern.data());
    own_ = root_ + "/alice";
  }
  ~UserFiles() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << text;
  }

  std::string root_, own_;
};

TEST_F(UserFiles, TheDirectoryIsForTheUserOnly) {
  ASSERT_TRUE(MakeUserDirectory(own_).ok());
  EXPECT_EQ(fs::status(own_).permissions(), fs::perms::owner_all);
  EXPECT_TRUE(MakeUserDirectory(own_).ok());
}

TEST_F(UserFiles, ADirectoryOrSymlinkOfAnotherUserIsRefused) {
  fs::create_directory(root_ + "/elsewhere");
  fs::create_directory_symlink(root_ + "/elsewhere", own_);
  EXPECT_THAT(MakeUserDirectory(own_).message(), HasSubstr("not a directory of this user"));
  fs::remove(own_);
  fs::create_directory(own_);
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a directory away";
  ASSERT_EQ(chown(own_.c_str(), 1, 1), 0);
  EXPECT_THAT(MakeUserDirectory(own_).message(), HasSubstr("not a directory of this user"));
}

TEST_F(UserFiles, TheScriptOfAJobIsInItsDirectory) {
  ASSERT_TRUE(MakeUserDirectory(own_).ok());
  ASSERT_TRUE(PrepareJob(own_, "job-1", "#!/bin/sh\n").ok());
  ASSERT_TRUE(PrepareJob(own_, "job-1", "#!/bin/bash\n").ok());
  const auto script = ReadUserFile(own_, own_ + "/allocations/job-1", "job.sh", 0, 100);
  EXPECT_EQ(script.value_or(script.status().ToString()), "#!/bin/bash\n");
}

TEST_F(UserFiles, AScriptThatDoesNotFitIsReportedWithTheReason) {
  ASSERT_TRUE(MakeUserDirectory(own_).ok());
  // With a limit of the file size, write behaves as on a full disk: the first call writes a part.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{5, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status written = PrepareJob(own_, "job-1", "#!/bin/sh\n");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(written.message(), HasSubstr("job.sh: File too large"));
}

TEST_F(UserFiles, AScriptIsNotWrittenThroughASymlink) {
  ASSERT_TRUE(MakeUserDirectory(own_).ok());
  Write(root_ + "/precious", "precious");
  fs::create_directories(own_ + "/allocations/job-1");
  fs::create_symlink(root_ + "/precious", own_ + "/allocations/job-1/job.sh");
  EXPECT_FALSE(PrepareJob(own_, "job-1", "#!").ok());
  fs::create_directories(root_ + "/elsewhere/job-2");
  fs::remove_all(own_ + "/allocations");
  fs::create_directory_symlink(root_ + "/elsewhere", own_ + "/allocations");
  EXPECT_FALSE(PrepareJob(own_, "job-2", "#!").ok());
  EXPECT_FALSE(fs::exists(root_ + "/elsewhere/job-2/job.sh"));
}

TEST_F(UserFiles, PiecesOfAFileAreRead) {
  Write(own_ + "/1/2/token/rank-0.out", "0123456789");
  EXPECT_EQ(ReadUserFile(own_, own_ + "/1/2/token", "rank-0.out", 2, 3).value_or("?"), "234");
  EXPECT_EQ(ReadUserFile(own_, own_ + "/1/2/token", "rank-0.out", 10, 3).value_or("?"), "");
}

TEST_F(UserFiles, AMissingFileIsNotFound) {
  fs::create_directories(own_ + "/1");
  EXPECT_EQ(ReadUserFile(own_, own_ + "/1", "x", 0, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadUserFile(own_, own_ + "/2", "x", 0, 1).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(UserFiles, NothingOutsideOfTheDirectoryIsRead) {
  Write(root_ + "/secret", "secret");
  fs::create_directories(own_ + "/1");
  fs::create_symlink(root_ + "/secret", own_ + "/1/link");
  fs::create_directory_symlink(root_, own_ + "/out");
  EXPECT_FALSE(ReadUserFile(own_, own_ + "/1", "link", 0, 10).ok());
  EXPECT_FALSE(ReadUserFile(own_, own_ + "/out", "secret", 0, 10).ok());
  EXPECT_FALSE(ReadUserFile(own_, root_, "secret", 0, 10).ok());
  EXPECT_FALSE(ReadUserFile(own_, own_ + "/..", "secret", 0, 10).ok());
  EXPECT_FALSE(ReadUserFile(own_, own_ + "/1", "../../secret", 0, 10).ok());
}

TEST_F(UserFiles, AFifoIsReportedAndNotOpened) {
  fs::create_directories(own_ + "/1");
  ASSERT_EQ(mkfifo((own_ + "/1/fifo").c_str(), 0600), 0);
  EXPECT_EQ(ReadUserFile(own_, own_ + "/1", "fifo", 0, 10).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(UserFiles, OnlyAttemptsBelowTheDirectoryAreRemoved) {
  const auto never = [] { return false; };
  const auto remove = [&](const std::string& attempt) {
    return RemoveUserFiles(own_, attempt, FilesOf::kEverything, /*dry_run=*/false, never).status();
  };
  EXPECT_EQ(remove(own_ + "/7/12/token").code(), absl::StatusCode::kFailedPrecondition)
      << "a missing directory may be one that is not mounted";
  for (const char* path :
       {"/alice/allocations/job/job.sh", "/alice/7/12/token/a", "/alice/07/12/token/a", "/bob/7/12/token/a"})
    Write(root_ + path, "a");
  for (const char* path :
       {"/alice/allocations/job/job.sh", "/alice/7/12", "/alice/7", "/alice", "/alice/07/12/token",
        "/bob/7/12/token", "/alice/../bob/7/12/token", "/alice/7/12/token/a", "/alice/7/12/.."}) {
    EXPECT_EQ(remove(root_ + path).code(), absl::StatusCode::kInvalidArgument) << path;
  }
  EXPECT_TRUE(remove(own_ + "/7/12/token").ok());
  EXPECT_FALSE(fs::exists(own_ + "/7/12"));
  EXPECT_TRUE(fs::exists(own_ + "/allocations/job/job.sh"));
  EXPECT_TRUE(fs::exists(root_ + "/bob/7/12/token/a"));
  EXPECT_FALSE(RemoveEmptyStudy(own_, own_ + "/allocations", false).ok());
  EXPECT_TRUE(RemoveEmptyStudy(own_, own_ + "/7", /*dry_run=*/true).value());
  EXPECT_TRUE(RemoveEmptyStudy(own_, own_ + "/7", /*dry_run=*/false).value());
  EXPECT_FALSE(RemoveEmptyStudy(own_, own_ + "/7", /*dry_run=*/false).value());
}

TEST_F(UserFiles, ARemovalFollowsNoSymlinksAndCanBeInterrupted) {
  Write(root_ + "/precious/a", "a");
  Write(own_ + "/7/12/token/a", "a");
  fs::create_directory_symlink(root_ + "/precious", own_ + "/7/12/token/link");
  fs::create_directory_symlink(root_ + "/precious", own_ + "/7/13");
  auto removed =
      RemoveUserFiles(own_, own_ + "/7/12/token", FilesOf::kEverything, false, [] { return true; });
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_FALSE(removed->complete);
  removed = RemoveUserFiles(own_, own_ + "/7/12/token", FilesOf::kEverything, false, [] { return false; });
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_TRUE(removed->complete);
  removed = RemoveUserFiles(own_, own_ + "/7/13/a", FilesOf::kEverything, false, [] { return false; });
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(removed->files.why_left, HasSubstr("link"));
  EXPECT_TRUE(fs::exists(root_ + "/precious/a"));
}

}  // namespace
}  // namespace scalelab::agent
