#include "files/lock_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace scalelab {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LockFileTest : public testing::Test {
 protected:
  LockFileTest() {
    std::string pattern = testing::TempDir() + "lock-file-XXXXXX";
    root_ = mkdtemp(pattern.data());
    path_ = root_ + "/lock";
  }
  ~LockFileTest() override { std::filesystem::remove_all(root_); }

  std::string Content() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool Taken(const absl::StatusOr<std::optional<LockFile>>& lock) const {
    EXPECT_TRUE(lock.ok()) << lock.status();
    return lock.ok() && lock->has_value();
  }
  LockHolder Holder() const {
    const absl::StatusOr<LockHolder> holder = FindLockHolder(path_);
    EXPECT_TRUE(holder.ok()) << holder.status();
    return holder.ok() ? *holder : LockHolder{};
  }

  std::string root_, path_;
};

TEST_F(LockFileTest, IsHeldOnceUntilItIsDestroyed) {
  {
    const auto first = LockFile::Take(path_);
    EXPECT_TRUE(Taken(first));
    EXPECT_FALSE(Taken(LockFile::Take(path_)));
  }
  EXPECT_TRUE(Taken(LockFile::Take(path_)));
}

TEST_F(LockFileTest, IsForItsOwnerOnlyAndKeepsItsContent) {
  std::ofstream(path_) << "text";
  EXPECT_TRUE(Taken(LockFile::Take(path_)));
  EXPECT_EQ(Content(), "text");
  std::filesystem::remove(path_);
  EXPECT_TRUE(Taken(LockFile::Take(path_)));
  struct stat found {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(LockFileTest, TheProcessIdReplacesAnEarlierOne) {
  std::ofstream(path_) << "12345678901234567890\n";
  const auto lock = LockFile::TakeWithProcessId(path_);
  EXPECT_TRUE(Taken(lock));
  EXPECT_EQ(Content(), absl::StrCat(getpid(), "\n"));
}

TEST_F(LockFileTest, AProcessThatTestsTheLockDoesNotKeepItFromBeingTaken) {
  const int tester = open(path_.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(tester, LOCK_SH), 0);
  std::thread end([&] { close(tester); });
  EXPECT_TRUE(Taken(LockFile::TakeWithProcessId(path_)));
  end.join();
}

TEST_F(LockFileTest, ALockThatIsHeldIsGivenUpAfterHalfASecond) {
  const auto first = LockFile::Take(path_);
  const absl::Time begin = absl::Now();
  EXPECT_FALSE(Taken(LockFile::TakeWithProcessId(path_)));
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(400));
  EXPECT_EQ(Content(), "");
}

TEST_F(LockFileTest, AForkedChildSharesTheLock) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  pid_t child = -1;
  {
    const auto lock = LockFile::TakeWithProcessId(path_);
    ASSERT_TRUE(Taken(lock));
    child = fork();
    if (child == 0) {
      close(ends[1]);
      char byte = 0;
      (void)!read(ends[0], &byte, 1);  // returns when the test closes the pipe or ends
      _exit(0);
    }
  }
  ASSERT_GT(child, 0);
  EXPECT_TRUE(Holder().held);
  EXPECT_EQ(Holder().pid, getpid());
  EXPECT_FALSE(Taken(LockFile::Take(path_)));
  close(ends[1]);
  waitpid(child, nullptr, 0);
  close(ends[0]);
  EXPECT_FALSE(Holder().held);
}

TEST_F(LockFileTest, ErrorsNameThePath) {
  for (const auto& lock : {LockFile::Take("/nowhere/lock"), LockFile::TakeWithProcessId("/nowhere/lock")}) {
    EXPECT_EQ(lock.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(lock.status().message(), AllOf(HasSubstr("/nowhere/lock"), HasSubstr("No such file")));
  }
}

TEST_F(LockFileTest, ASymlinkIsNotFollowed) {
  std::filesystem::create_symlink(root_ + "/other", path_);
  EXPECT_EQ(LockFile::Take(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FindLockHolder(path_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/other"));
}

TEST_F(LockFileTest, NobodyHoldsAFileThatDoesNotExist) {
  EXPECT_FALSE(Holder().held);
  EXPECT_EQ(Holder().pid, 0);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(LockFileTest, TheHolderIsFoundAndRemembered) {
  {
    const auto lock = LockFile::TakeWithProcessId(path_);
    EXPECT_TRUE(Holder().held);
    EXPECT_EQ(Holder().pid, getpid());
  }
  EXPECT_FALSE(Holder().held);
  EXPECT_EQ(Holder().pid, getpid());
}

TEST_F(LockFileTest, WhatIsNoProcessIdIsNone) {
  const auto lock = LockFile::Take(path_);
  for (const char* text : {"", "nobody\n", "-1\n", "0\n", "12345678901234567890\n"}) {
    std::ofstream(path_, std::ios::trunc) << text;
    EXPECT_TRUE(Holder().held);
    EXPECT_EQ(Holder().pid, 0) << text;
  }
}

TEST_F(LockFileTest, AnotherTestOfTheLockIsNoHolder) {
  const int tester = open(path_.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(tester, LOCK_SH), 0);
  EXPECT_FALSE(Holder().held);
  close(tester);
}

TEST_F(LockFileTest, AFifoInItsPlaceDoesNotBlock) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const absl::Status status = FindLockHolder(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(path_), HasSubstr("is a FIFO")));
}

}  // namespace
}  // namespace scalelab
