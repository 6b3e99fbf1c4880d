#include "client/session/agent_start.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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
  {
    const absl::StatusOr<LockFile> first = LockAgent(*files_);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(LockAgent(*files_).status().code(), absl::StatusCode::kAlreadyExists);
  }
  EXPECT_TRUE(LockAgent(*files_).ok());
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

class StartingAnAgent : public testing::Test {
 protected:
  StartingAnAgent() {
    std::string pattern = testing::TempDir() + "agent-start-XXXXXX";
    root_ = mkdtemp(pattern.data());
    options_.address.text = "unix:/socket";
    options_.token_file = "/token";
  }
  ~StartingAnAgent() override { std::filesystem::remove_all(root_); }

  // Returns a program that StartAgent can run instead of scalelab. It runs in root_.
  std::string Program(const std::string& script) const {
    const std::string path = root_ + "/program";
    std::ofstream(path) << "#!/bin/sh\ncd " << root_ << "\n" << script << "\n";
    chmod(path.c_str(), 0700);
    return path;
  }

  std::string root_;
  ServerOptions options_;
};

TEST_F(StartingAnAgent, ItSurvivesTheCommand) {
  for (const char* fifo : {"/started", "/question", "/answer"})
    ASSERT_EQ(mkfifo((root_ + fifo).c_str(), 0600), 0);
  const int question = open((root_ + "/question").c_str(), O_RDWR | O_CLOEXEC);
  const int answer = open((root_ + "/answer").c_str(), O_RDWR | O_CLOEXEC);
  setenv("AGENT_START_TEST", "of this process", 1);
  const absl::Status started = StartAgent(options_, Program(R"(
      setsid sh -c 'echo x >started; read line <question; echo "$line, $1, $AGENT_START_TEST" >answer' sh "$*" &
      read line <started)"));
  unsetenv("AGENT_START_TEST");
  EXPECT_TRUE(started.ok()) << started;
  ASSERT_EQ(write(question, "alive\n", 6), 6);
  pollfd ready{answer, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 30'000), 1) << "the agent was killed";
  char text[1024] = {};
  EXPECT_GT(read(answer, text, sizeof text - 1), 0);
  EXPECT_STREQ(text, "alive, agent --detach --server unix:/socket --token-file /token, of this process\n");
  close(question);
  close(answer);
}

TEST_F(StartingAnAgent, ItsErrorMessageIsReturned) {
  const absl::Status failed = StartAgent(options_, Program("echo the agent has ended >&2\nexit 1"));
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failed.message(), "the agent has ended");
  EXPECT_THAT(StartAgent(options_, root_ + "/none").message(), testing::HasSubstr(root_ + "/none"));
}

}  // namespace
}  // namespace scalelab::client
