#include "client/session/agent_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace scalelab::client {
namespace {

ServerAddress Address() {
  ServerAddress address;
  address.text = absl::StrCat("unix:/nowhere/agent-start-test-", getpid());
  return address;
}

class AgentStart : public testing::Test {
 protected:
  AgentStart() { setenv("XDG_STATE_HOME", testing::TempDir().c_str(), 1); }
  ~AgentStart() override {
    if (files_.ok()) std::filesystem::remove(files_->lock);
    unsetenv("XDG_STATE_HOME");
  }
  absl::StatusOr<AgentFiles> files_ = MakeAgentFiles(Address());
};

TEST_F(AgentStart, OneAgentOfAUserRunsForAServer) {
  ASSERT_TRUE(files_.ok()) << files_.status();
  const absl::StatusOr<int> first = LockAgent(*files_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(LockAgent(*files_).status().code(), absl::StatusCode::kAlreadyExists);
  close(*first);
  const absl::StatusOr<int> second = LockAgent(*files_);
  EXPECT_TRUE(second.ok());
  close(*second);
}

TEST_F(AgentStart, ServersHaveLocksOfTheirOwn) {
  ServerAddress other = Address();
  other.text += "-other";
  const auto files = MakeAgentFiles(other);
  ASSERT_TRUE(files.ok() && files_.ok());
  EXPECT_NE(files->lock, files_->lock);
  EXPECT_NE(files->log, files_->log);
}

TEST_F(AgentStart, TheLockIsInADirectoryOfTheUser) {
  ASSERT_TRUE(files_.ok());
  struct stat found {};
  ASSERT_EQ(stat(std::filesystem::path(files_->lock).parent_path().c_str(), &found), 0);
  EXPECT_EQ(found.st_uid, geteuid());
  EXPECT_EQ(found.st_mode & 0777, 0700u);
}

}  // namespace
}  // namespace scalelab::client
