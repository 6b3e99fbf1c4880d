#include "server/data_dir.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

class DataDirTest : public testing::Test {
 protected:
  DataDirTest() {
    std::string directory = testing::TempDir() + "data-dir-XXXXXX";
    root_ = mkdtemp(directory.data());
    path_ = root_ + "/a/b";
  }
  ~DataDirTest() override { std::filesystem::remove_all(root_); }

  static int Mode(const std::string& path) {
    struct stat found {};
    return stat(path.c_str(), &found) == 0 ? found.st_mode & 07777 : -1;
  }

  std::string root_, path_;
};

TEST_F(DataDirTest, CreatesFilesAccessibleToTheOwnerOnly) {
  const absl::StatusOr<DataDir> directory = DataDir::Open(path_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(Mode(root_ + "/a"), 0700);
  EXPECT_EQ(Mode(path_), 0700);
  EXPECT_EQ(Mode(directory->allocations()), 0700);
  EXPECT_EQ(Mode(path_ + "/client.token"), 0600);
  EXPECT_EQ(Mode(path_ + "/server.key"), 0600);
}

TEST_F(DataDirTest, KeepsItsTokenAcrossStarts) {
  std::string token;
  {
    const absl::StatusOr<DataDir> directory = DataDir::Open(path_);
    ASSERT_TRUE(directory.ok()) << directory.status();
    token = directory->client_token();
  }
  EXPECT_THAT(token, MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(token.size(), 64u);
  EXPECT_EQ(DataDir::Open(path_)->client_token(), token);
  EXPECT_NE(DataDir::Open(root_ + "/other")->client_token(), token);
}

TEST_F(DataDirTest, KeepsItsKeyWhichDiffersFromTheToken) {
  std::string key;
  {
    const absl::StatusOr<DataDir> directory = DataDir::Open(path_);
    ASSERT_TRUE(directory.ok()) << directory.status();
    key = directory->server_key();
    EXPECT_NE(key, directory->client_token());
  }
  EXPECT_EQ(key.size(), 64u);
  EXPECT_EQ(DataDir::Open(path_)->server_key(), key);
}

TEST_F(DataDirTest, IsLockedByOneProcessAtATime) {
  const absl::StatusOr<DataDir> first = DataDir::Open(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status status = DataDir::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "another scalelabd (pid " + std::to_string(getpid()) + ") uses " + path_ +
                                  "; stop it or set another --data");
}

TEST_F(DataDirTest, IsUnlockedByTheDestructor) {
  EXPECT_TRUE(DataDir::Open(path_).ok());
  EXPECT_TRUE(DataDir::Open(path_).ok());
}

TEST_F(DataDirTest, IsRefusedBelowAFile) {
  std::ofstream(root_ + "/file") << "x";
  for (const std::string& path : {root_ + "/file", root_ + "/file/data"}) {
    const absl::Status status = DataDir::Open(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(path), HasSubstr("file"), HasSubstr("--data")));
  }
}

TEST_F(DataDirTest, RefusesATokenThatOthersCanRead) {
  EXPECT_TRUE(DataDir::Open(path_).ok());
  chmod((path_ + "/client.token").c_str(), 0644);
  const absl::Status status = DataDir::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(path_ + "/client.token"), HasSubstr("chmod 600")));
}

TEST_F(DataDirTest, RefusesAnEmptyTokenFile) {
  std::filesystem::create_directories(path_);
  std::ofstream(path_ + "/client.token") << "\n";
  chmod((path_ + "/client.token").c_str(), 0600);
  EXPECT_THAT(DataDir::Open(path_).status().message(), HasSubstr("contains no secret"));
}

// Opens `path` in a child process that may not write there, and returns the error message. `prepare` runs in
// the child and drops the permission, because root may write nearly everywhere.
template <typename Prepare>
std::string MessageInChild(const std::string& path, Prepare prepare) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string message =
        prepare() ? std::string(DataDir::Open(path).status().message()) : "not prepared";
    [[maybe_unused]] const ssize_t written = write(pipe_fds[1], message.data(), message.size());
    _exit(0);
  }
  close(pipe_fds[1]);
  char text[1024] = {};
  [[maybe_unused]] const ssize_t length = read(pipe_fds[0], text, sizeof(text) - 1);
  close(pipe_fds[0]);
  waitpid(child, nullptr, 0);
  return text;
}

TEST_F(DataDirTest, RefusesADirectoryOfAnotherUser) {
  std::filesystem::create_directories(path_);
  chmod(path_.c_str(), 0555);
  for (const std::string& above : {root_, root_ + "/a"}) chmod(above.c_str(), 0755);
  const std::string message = MessageInChild(path_, [] { return getuid() != 0 || setuid(65534) == 0; });
  EXPECT_THAT(message, AllOf(HasSubstr(path_), HasSubstr("Permission denied"), HasSubstr("--data")));
}

TEST_F(DataDirTest, LeavesNoSecretWhoseNameIsNotSynced) {
  std::filesystem::create_directories(path_);
  chmod(path_.c_str(), 0333);  // files can be created, but the folder cannot be opened for the sync
  for (const std::string& above : {root_, root_ + "/a"}) chmod(above.c_str(), 0755);
  const std::string message = MessageInChild(path_, [&] {
    return (getuid() != 0 || setuid(65534) == 0) && access(path_.c_str(), W_OK | X_OK) == 0;
  });
  chmod(path_.c_str(), 0700);
  if (message == "not prepared") GTEST_SKIP() << "the temporary directory is not open to other users";
  EXPECT_THAT(message, AllOf(HasSubstr(path_), HasSubstr("it cannot be synced"), HasSubstr("--data")));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/client.token"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/client.token.part"));
}

TEST_F(DataDirTest, RefusesAReadOnlyFilesystem) {
  std::filesystem::create_directories(path_);
  const std::string message = MessageInChild(path_, [&] {
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
           mount("none", path_.c_str(), "tmpfs", MS_RDONLY, nullptr) == 0;
  });
  if (message == "not prepared") GTEST_SKIP() << "mounting is not permitted on this machine";
  EXPECT_THAT(message, AllOf(HasSubstr(path_), HasSubstr("Read-only file system"), HasSubstr("--data")));
}

}  // namespace
}  // namespace scalelab::server
