// Tests of the agents' service over real sockets, with the client side of `scalelab agent`.
#include <pwd.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "agent/executor.h"
#include "agent/serve.h"
#include "scalelab/v1/admin.grpc.pb.h"
#include "scalelab/v1/agent.grpc.pb.h"
#include "server/scheduler/agent/agent_scheduler.h"
#include "tests/fakes/hanging_directory.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

// A fake runner that answers each program with its arguments, when the test allows it.
class EchoRunner final : public CommandRunner {
 public:
  absl::StatusOr<CommandResult> Run(const std::vector<std::string>& argv, const std::string& input,
                                    const std::vector<std::string>&, absl::Duration) override {
    absl::MutexLock lock(&mutex_);
    ++begun_;
    mutex_.Await(absl::Condition(&may_answer_));
    CommandResult result;
    result.exit_code = 0;
    result.out = absl::StrCat(absl::StrJoin(argv, " "), "\n", input);
    return result;
  }
  void Hold() {
    absl::MutexLock lock(&mutex_);
    may_answer_ = false;
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    may_answer_ = true;
  }
  void WaitUntilBegun() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* begun) { return *begun > 0; }, &begun_));
  }

 private:
  absl::Mutex mutex_;
  bool may_answer_ ABSL_GUARDED_BY(mutex_) = true;
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::string OwnName() {
  passwd* entry = getpwuid(geteuid());
  return entry->pw_name;
}

class AgentServiceTest : public RpcServerTest {
 protected:
  AgentServiceTest() {
    std::filesystem::create_directory(directory_ + "/runs");
    RpcServerOptions options = Options();
    options.agents = &hub_;
    options.runs_dir = directory_ + "/runs";
    Serve(options);
  }
  ~AgentServiceTest() override {
    runner_.Release();
    hub_.Stop();
    for (std::thread& thread : threads_) thread.join();
    rpc_.reset();
  }

  // Runs an agent on a thread of its own. Returns how it will end.
  std::shared_future<grpc::Status> StartAgent() {
    auto ended = std::make_shared<std::promise<grpc::Status>>();
    auto connected = std::make_shared<std::promise<void>>();
    auto context = std::make_unique<grpc::ClientContext>();
    context_ = context.get();
    threads_.emplace_back([this, ended, connected, channel = Unix(), context = std::move(context)]() mutable {
      agent::ServeOptions options;
      options.version = "1";
      options.host = "login";
      options.runner = &runner_;
      options.connected = [connected] { connected->set_value(); };
      const auto stub = v1::AgentService::NewStub(channel);
      ended->set_value(agent::Serve(*stub, std::move(context), options));
    });
    EXPECT_EQ(connected->get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
    WaitUntilConnected();
    return ended->get_future().share();
  }
  // Wait until the agent is connected: the hub gets it with its greeting, which the server may read after it
  // has sent the welcome.
  void WaitUntilConnected() {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (!hub_.Check(OwnName()).ok() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_TRUE(hub_.Check(OwnName()).ok());
  }
  absl::StatusOr<CommandResult> Sinfo() {
    AgentRequest request;
    request.argv = {"sinfo", "--all"};
    return hub_.Ask(OwnName(), request);
  }

  AgentHub hub_;
  EchoRunner runner_;
  grpc::ClientContext* context_ = nullptr;  // context of the agent that was started last
  std::vector<std::thread> threads_;
};

TEST_F(AgentServiceTest, TheUserOfAnAgentIsTheAccountOfItsProcess) {
  StartAgent();
  EXPECT_TRUE(hub_.Check(OwnName()).ok());
  EXPECT_THAT(hub_.Check("somebody").message(), HasSubstr("the agent of somebody is not connected"));
}

TEST_F(AgentServiceTest, AProgramIsExecutedAndItsOutputReturned) {
  StartAgent();
  const auto result = Sinfo();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, "sinfo --all\n");
  EXPECT_EQ(result->lost, "");
}

TEST_F(AgentServiceTest, WhatTheAgentRefusesWasCertainlyNotExecuted) {
  StartAgent();
  AgentRequest request;
  request.argv = {"scontrol", "reboot"};
  const auto result = hub_.Ask(OwnName(), request);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(result.status().message(), HasSubstr("only `scontrol show` is allowed"));
}

TEST_F(AgentServiceTest, FilesOfTheUserAreRead) {
  StartAgent();
  const std::string folder = DirectoryOfUser(directory_ + "/runs", OwnName()) + "/1/2/token";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/rank-0.out") << "hello";
  EXPECT_EQ(hub_.ReadFile(OwnName(), folder, "rank-0.out", 1, 3).value_or("?"), "ell");
  EXPECT_EQ(hub_.ReadFile(OwnName(), folder, "rank-0.out", 9, 3).value_or("?"), "") << "beyond the end";
  EXPECT_EQ(hub_.ReadFile(OwnName(), folder, "rank-1.out", 0, 3).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(hub_.ReadFile(OwnName(), "/etc", "passwd", 0, 3).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(AgentServiceTest, AReadThatHangsDoesNotKeepTheAgentFromConnectingAgain) {
  const auto ended = StartAgent();
  const std::string folder = DirectoryOfUser(directory_ + "/runs", OwnName()) + "/1/2/token";
  std::filesystem::create_directories(folder);
  auto hanging = HangingDirectory::Mount(folder);
  if (!hanging.ok()) GTEST_SKIP() << hanging.status();
  EXPECT_FALSE(hub_.ReadFile(OwnName(), folder, "rank-0.out", 0, 3).ok());  // after 15 s
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  hanging->reset();
}

TEST_F(AgentServiceTest, TheNumberOfReadsThatHangIsLimited) {
  const std::string folder = directory_ + "/runs/1/2/token";
  std::filesystem::create_directories(folder);
  auto hanging = HangingDirectory::Mount(folder);
  if (!hanging.ok()) GTEST_SKIP() << hanging.status();
  const agent::Executor executor({geteuid(), directory_ + "/runs"}, runner_);
  v1::ServeResponse request;
  request.mutable_read_file()->set_directory(folder);
  request.mutable_read_file()->set_name("rank-0.out");
  request.mutable_read_file()->set_length(3);
  std::vector<std::thread> reads;
  std::atomic<int> ended = 0;
  std::string refused;
  absl::Mutex mutex;
  for (int i = 0; i < 5; ++i) {
    reads.emplace_back([&] {
      const std::string error = executor.Answer(request).error();
      absl::MutexLock lock(&mutex);
      if (ended++ == 0) refused = error;  // the others end with the file system
    });
  }
  {
    absl::MutexLock lock(&mutex);
    const auto one = [&] { return ended == 1; };
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&one), absl::Seconds(30)));
    EXPECT_EQ(refused, "the filesystem has not answered 4 earlier requests; check it on the login node");
  }
  hanging->reset();
  for (std::thread& read : reads) read.join();
}

TEST_F(AgentServiceTest, ANewerAgentReplacesTheOlderOneWhoseRequestsAreLost) {
  runner_.Hold();
  const auto old = StartAgent();
  std::thread asking([&] {
    const auto result = Sinfo();
    ASSERT_TRUE(result.ok());
    EXPECT_THAT(result->lost, HasSubstr("replaced by a newer one"));
  });
  runner_.WaitUntilBegun();
  const auto fresh = StartAgent();
  asking.join();
  runner_.Release();
  EXPECT_EQ(old.get().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(Sinfo()->out, "sinfo --all\n");
}

TEST_F(AgentServiceTest, TheRequestsOfAnAgentThatLeavesAreLost) {
  runner_.Hold();
  const auto ended = StartAgent();
  std::thread asking([&] {
    const auto result = Sinfo();
    ASSERT_TRUE(result.ok());
    EXPECT_THAT(result->lost, HasSubstr("ended before it answered"));
  });
  runner_.WaitUntilBegun();
  context_->TryCancel();
  asking.join();
  runner_.Release();
  EXPECT_FALSE(ended.get().ok());
  EXPECT_FALSE(hub_.Check(OwnName()).ok());
}

TEST_F(AgentServiceTest, TheEndOfTheServiceEndsTheAgent) {
  const auto ended = StartAgent();
  hub_.Stop();
  EXPECT_EQ(ended.get().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(AgentServiceTest, AMessageBeforeTheGreetingEndsTheStream) {
  const auto stub = v1::AgentService::NewStub(Unix());
  auto context = Context();
  auto stream = stub->Serve(context.get());
  v1::ServeRequest empty;
  stream->Write(empty);
  v1::ServeResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AgentServiceTest, OverTcpATokenIsNeeded) {
  const auto stub = v1::AgentService::NewStub(Tcp());
  auto context = Context();
  auto stream = stub->Serve(context.get());
  v1::ServeResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  v1::GetAgentResponse agent;
  ASSERT_TRUE(stub->GetAgent(Context("right-token").get(), {}, &agent).ok());
  EXPECT_EQ(agent.user(), Users({}).service()) << "the user of client.token";
}

TEST_F(AgentServiceTest, ConnectionsAndRefusalsAreInTheAuditLog) {
  StartAgent();
  const std::string reads =
      rpc_->identities().sessions().Issue(OwnName(), "munge", absl::Now(), Scope::kRead);
  const auto stub = v1::AgentService::NewStub(Tcp());
  auto context = Context(reads);
  auto stream = stub->Serve(context.get());
  v1::ServeResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  v1::ListAuditEntriesResponse list;
  ASSERT_TRUE(v1::AdminService::NewStub(Unix())->ListAuditEntries(Context().get(), {}, &list).ok());
  std::vector<std::string> entries;
  for (const auto& entry : list.entries()) {
    entries.push_back(
        absl::StrCat(entry.user(), " ", entry.source(), " ", entry.action(), " ", entry.result()));
  }
  EXPECT_THAT(entries,
              testing::UnorderedElementsAre(absl::StrCat(OwnName(), " unix socket Serve OK"),
                                            absl::StrCat(OwnName(), " munge Serve PERMISSION_DENIED")));
}

TEST_F(AgentServiceTest, GetAgentReturnsWhetherOneIsNeededAndConnected) {
  const auto stub = v1::AgentService::NewStub(Unix());
  v1::GetAgentResponse response;
  ASSERT_TRUE(stub->GetAgent(Context().get(), {}, &response).ok());
  EXPECT_TRUE(response.needed());
  EXPECT_FALSE(response.connected());
  EXPECT_EQ(response.user(), OwnName());
  StartAgent();
  ASSERT_TRUE(stub->GetAgent(Context().get(), {}, &response).ok());
  EXPECT_TRUE(response.connected());
}

TEST_F(RpcServerTest, AServiceThatRunsAllJobsItselfRefusesAgents) {
  const auto stub = v1::AgentService::NewStub(Unix());
  auto context = Context();
  auto stream = stub->Serve(context.get());
  v1::ServeResponse response;
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("no agent is needed"));
  v1::GetAgentResponse agent;
  ASSERT_TRUE(stub->GetAgent(Context().get(), {}, &agent).ok());
  EXPECT_FALSE(agent.needed());
}

}  // namespace
}  // namespace scalelab::server
