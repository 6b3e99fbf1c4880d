// Tests that one caller or a blocked read does not disturb other calls, and of the health check.
#include <fstream>

#include "proto/status.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "server/identity/secrets.h"
#include "tests/fakes/hanging_directory.h"
#include "tests/fakes/wall_clock.h"
#include "tests/unit/server/services/rpc_limits_fixture.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

TEST_F(RpcLimitsTest, ManyBlockedReadsDelayNeitherTheCoreNorOtherCalls) {
  Submit();
  store_->HoldAfter(0);
  std::vector<std::future<grpc::Status>> blocked;
  for (int i = 0; i < 20; ++i)
    blocked.push_back(std::async(std::launch::async, [this] { return List(Unix()); }));
  store_->WaitForHeldRead();
  v1::GetClusterResponse cluster;
  EXPECT_TRUE(v1::ClusterService::NewStub(Unix())->GetCluster(Context().get(), {}, &cluster).ok());
  EXPECT_EQ(cluster.queued_runs(), 1);
  v1::PlanStudyRequest plan;
  *plan.mutable_spec() = World::Spec({1});
  v1::PlanStudyResponse planned;
  EXPECT_TRUE(v1::StudyService::NewStub(Unix())->PlanStudy(Context().get(), plan, &planned).ok());
  v1::SynchronizeResponse desired;
  auto context = Context();
  EXPECT_EQ(v1::WorkerService::NewStub(Unix())->Synchronize(context.get(), {}, &desired).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  store_->Release();
  for (auto& call : blocked) EXPECT_TRUE(call.get().ok());
}

TEST_F(RpcLimitsTest, OneConnectionCarries256CallsAtATime) {
  store_->HoldAfter(0);
  constexpr int kCalls = 300;
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    v1::ListStudiesResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ListStudiesResponse>> reader;
  };
  std::vector<Call> calls(kCalls);
  grpc::CompletionQueue queue;
  const auto stub = v1::StudyService::NewStub(Unix());
  for (Call& call : calls) {
    call.context = Context();
    call.reader = stub->AsyncListStudies(call.context.get(), {}, &queue);
    call.reader->Finish(&call.response, &call.status, &call);
  }
  EXPECT_TRUE(Eventually([&] { return Queued("reads") == 252; }))
      << Queued("reads") << ", and 4 are in progress";
  store_->Release();
  void* tag = nullptr;
  bool ok = false;
  for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(queue.Next(&tag, &ok));
  // A queue of the server would refuse 300 calls of one user; the client's gRPC has held back the last ones.
  for (const Call& call : calls) EXPECT_TRUE(call.status.ok()) << call.status.error_message();
  queue.Shutdown();
  EXPECT_FALSE(queue.Next(&tag, &ok));
}

TEST_F(RpcLimitsTest, LargeRequestsOfOneUserLeaveRoomForAnother) {
  for (const char* user : {"alice", "bob"}) {
    db::TokenRow row;
    row.user = user;
    row.scope = static_cast<int>(Scope::kSubmit);
    row.hash = Sha256(user);
    ASSERT_TRUE(store_->PutToken(row).ok());
  }
  Serve(Options());
  Submit();
  store_->HoldAfter(0);
  v1::GetCurveRequest curve;
  curve.set_study("studies/1");
  std::vector<std::future<void>> of_alice;
  std::atomic<int> refused = 0;
  const auto call = [&] {
    v1::GetCurveResponse response;
    const auto status = v1::ResultService::NewStub(Tcp())->GetCurve(Context("alice").get(), curve, &response);
    refused += status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
  };
  for (int i = 0; i < 2; ++i) of_alice.push_back(std::async(std::launch::async, call));
  ASSERT_TRUE(Eventually([&] { return store_->held() == 2; })) << "the pool has two threads";
  for (int i = 0; i < 68; ++i) of_alice.push_back(std::async(std::launch::async, call));
  ASSERT_TRUE(Eventually([&] { return Queued("heavy") + refused == 68; })) << refused;
  EXPECT_EQ(Queued("heavy"), 16);
  auto of_bob = std::async(std::launch::async, [&] {
    v1::CreateStudyRequest request;
    *request.mutable_spec() = World::Spec({1});
    v1::CreateStudyResponse created;
    return v1::StudyService::NewStub(Tcp())->CreateStudy(Context("bob").get(), request, &created);
  });
  EXPECT_TRUE(Eventually([&] { return Queued("heavy") == 17; }));
  store_->Release();
  const grpc::Status status = of_bob.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (auto& call : of_alice) call.get();
}

TEST_F(RpcLimitsTest, LogsThatHangDelayNoSubmission) {
  store_->HoldAfter(0);
  std::vector<std::future<void>> logs;
  for (int run = 1; run <= 12; ++run) {
    logs.push_back(std::async(std::launch::async, [this, run] {
      std::string text;
      (void)ReadLog(run, &text);
    }));
  }
  ASSERT_TRUE(Eventually([&] { return store_->held() == 8; })) << "as many as the pool has threads";
  v1::PlanStudyRequest plan;
  *plan.mutable_spec() = World::Spec({1});
  (*plan.mutable_spec()->mutable_fixed()->mutable_fields())["engine"].set_string_value("pytorch/ddp");
  v1::PlanStudyResponse planned;
  auto context = Context();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const grpc::Status status = v1::StudyService::NewStub(Unix())->PlanStudy(context.get(), plan, &planned);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("engine pytorch/ddp cannot run here"));
  store_->Release();
  for (auto& log : logs) log.get();
}

TEST_F(RpcLimitsTest, LogsOnAFilesystemThatHangsDelayNoLogElsewhere) {
  constexpr int kLogs = 12;
  const std::string dead = directory_ + "/dead", sound = directory_ + "/sound";
  std::filesystem::create_directory(dead);
  std::filesystem::create_directory(sound);
  std::ofstream(sound + "/rank-0.out") << "hello";
  std::vector<std::string> directories;
  for (int i = 0; i < kLogs; ++i) directories.push_back(absl::StrCat(dead, "/", i));
  directories.push_back(sound);
  StoreAttemptsIn(directories);
  auto hanging = HangingDirectory::Mount(dead);
  if (!hanging.ok()) GTEST_SKIP() << hanging.status();
  std::vector<std::future<grpc::Status>> blocked;
  for (int run = 100; run < 100 + kLogs; ++run) {
    blocked.push_back(std::async(std::launch::async, [this, run] {
      std::string text;
      return ReadLog(run, &text);
    }));
  }
  EXPECT_TRUE(Eventually([&] { return (*hanging)->blocks() && Queued("logs") == kLogs - 4; }))
      << Queued("logs") << " wait: half of the 8 threads may read one filesystem";
  std::string text;
  const grpc::Status read = ReadLog(100 + kLogs, &text);
  EXPECT_TRUE(read.ok()) << read.error_message();
  EXPECT_EQ(text, "hello");
  hanging->reset();
  for (auto& log : blocked) (void)log.get();
}

TEST_F(RpcLimitsTest, ADataSetOnAFilesystemThatHangsDelaysNoOtherStudy) {
  const std::string data = directory_ + "/data";
  std::filesystem::create_directory(data);
  auto hanging = HangingDirectory::Mount(data);
  if (!hanging.ok()) GTEST_SKIP() << hanging.status();
  scheduler_.is_local = true;
  v1::CreateStudyRequest request;
  *request.mutable_spec() = World::Spec({1});
  auto& fixed = *request.mutable_spec()->mutable_fixed()->mutable_fields();
  fixed["dataset"].set_string_value("cifar10");
  fixed["data_dir"].set_string_value(data + "/cifar");
  v1::PlanStudyRequest plan;
  *plan.mutable_spec() = request.spec();
  v1::PlanStudyRequest elsewhere = plan;
  (*elsewhere.mutable_spec()->mutable_fixed()->mutable_fields())["data_dir"].set_string_value(directory_);
  std::vector<std::future<grpc::Status>> blocked;
  // As many as the pool has threads. More than 16 large requests of one user would be refused.
  for (int i = 0; i < 8; ++i) {
    blocked.push_back(std::async(std::launch::async, [this, request, i, &data]() mutable {
      (*request.mutable_spec()->mutable_fixed()->mutable_fields())["data_dir"].set_string_value(
          absl::StrCat(data, "/", i));
      v1::CreateStudyResponse created;
      return Create(request, &created);
    }));
  }
  for (int i = 0; i < 3; ++i) {
    blocked.push_back(std::async(std::launch::async, [&] {
      v1::CreateStudyResponse created;
      return Create(request, &created);
    }));
    blocked.push_back(std::async(std::launch::async, [&] {
      v1::PlanStudyResponse planned;
      return v1::StudyService::NewStub(Unix())->PlanStudy(Context().get(), plan, &planned);
    }));
  }
  ASSERT_TRUE(Eventually([&] { return (*hanging)->blocks(); }));
  for (int i = 0; i < 10; ++i) Submit();
  v1::PlanStudyResponse planned;
  const grpc::Status answered =
      v1::StudyService::NewStub(Unix())->PlanStudy(Context().get(), elsewhere, &planned);
  EXPECT_EQ(answered.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << answered.error_message();
  EXPECT_THAT(answered.error_message(), HasSubstr(directory_));
  hanging->reset();
  for (auto& call : blocked) {
    const grpc::Status status = call.get();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
}

TEST_F(RpcLimitsTest, FrameworksOnAFilesystemThatHangsDelayNoOtherStudy) {
  const std::string dead = directory_ + "/frameworks";
  std::filesystem::create_directory(dead);
  auto hanging = HangingDirectory::Mount(dead);
  if (!hanging.ok()) GTEST_SKIP() << hanging.status();
  scheduler_.is_local = true;
  FrameworksOptions options;
  options.directory = dead;
  Frameworks frameworks(std::move(options));
  Serve(Options(), frameworks);
  v1::PlanStudyRequest probing;
  *probing.mutable_spec() = World::Spec({1});
  (*probing.mutable_spec()->mutable_fixed()->mutable_fields())["engine"].set_string_value("pytorch/ddp");
  std::vector<std::future<grpc::Status>> blocked;
  // As many as the pool has threads.
  for (int i = 0; i < 4; ++i) {
    blocked.push_back(std::async(std::launch::async, [&] {
      v1::PlanStudyResponse planned;
      return v1::StudyService::NewStub(Unix())->PlanStudy(Context().get(), probing, &planned);
    }));
    blocked.push_back(std::async(std::launch::async, [&] {
      v1::ListFrameworksResponse listed;
      return v1::ClusterService::NewStub(Unix())->ListFrameworks(Context().get(), {}, &listed);
    }));
  }
  EXPECT_TRUE(Eventually([&] { return (*hanging)->blocks() && Queued("files") == 4; }))
      << "half of the threads are for other filesystems";
  v1::PlanStudyRequest elsewhere;
  *elsewhere.mutable_spec() = World::Spec({1});
  auto& fixed = *elsewhere.mutable_spec()->mutable_fixed()->mutable_fields();
  fixed["dataset"].set_string_value("cifar10");
  fixed["data_dir"].set_string_value(directory_);
  v1::PlanStudyResponse planned;
  auto context = Context();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  const grpc::Status answered =
      v1::StudyService::NewStub(Unix())->PlanStudy(context.get(), elsewhere, &planned);
  EXPECT_EQ(answered.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << answered.error_message();
  EXPECT_THAT(answered.error_message(), HasSubstr(directory_));
  hanging->reset();
  for (auto& call : blocked) (void)call.get();
  rpc_.reset();  // before the frameworks, which it uses
}

TEST_F(RpcLimitsTest, ACallEndsAtItsLimitThoughItsReadIsBlocked) {
  RpcServerOptions options = Options();
  options.call_limit = absl::Milliseconds(200);
  Serve(options);
  store_->HoldAfter(0);
  const grpc::Status status = List(Unix());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("time limit"));
}

TEST_F(RpcLimitsTest, AStreamEndsAtItsLimitThoughItsReadIsBlocked) {
  StorePoints(1, 10);
  RpcServerOptions options = Options();
  options.call_limit = absl::Milliseconds(200);
  Serve(options);
  store_->HoldAfter(0);
  v1::ReadPointsRequest request;
  request.set_run("runs/1");
  auto context = Context();
  const auto reader = v1::ResultService::NewStub(Unix())->ReadPoints(context.get(), request);
  v1::ReadPointsResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(RpcLimitsTest, ShutdownDoesNotWaitForABlockedRead) {
  store_->HoldAfter(0);
  auto call = std::async(std::launch::async, [this] { return List(Unix()); });
  store_->WaitForHeldRead();
  coordinator_->Stop();
  EXPECT_FALSE(rpc_->Shutdown(absl::ZeroDuration()));
  EXPECT_FALSE(call.get().ok());
  // The blocked thread continues with parts that must still exist.
  const int reads = store_->reads();
  store_->Release();
  WatchedStore* kept = store_.get();
  EXPECT_TRUE(Eventually([&] { return kept->reads() > reads; }));
}

TEST_F(RpcLimitsTest, ACallThatNeedsTooMuchMemoryFailsAndTheServiceLives) {
  StorePoints(1, 10);
  store_->RunOutOfMemory(true);
  const auto expect_refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(ReasonOf(FromGrpc(status)), "OUT_OF_MEMORY");
    EXPECT_THAT(status.error_message(), HasSubstr("too little memory"));
  };
  {
    SCOPED_TRACE("a call whose work gives its status");
    expect_refused(List(Unix()));
  }
  {
    SCOPED_TRACE("a call that continues on another thread");
    v1::CancelRunRequest request;
    request.set_name("runs/1");
    v1::CancelRunResponse response;
    expect_refused(v1::RunService::NewStub(Unix())->CancelRun(Context().get(), request, &response));
  }
  {
    SCOPED_TRACE("a stream");
    v1::ReadPointsRequest request;
    request.set_run("runs/1");
    auto context = Context();
    v1::ReadPointsResponse response;
    const auto reader = v1::ResultService::NewStub(Unix())->ReadPoints(context.get(), request);
    EXPECT_FALSE(reader->Read(&response));
    expect_refused(reader->Finish());
  }
  {
    SCOPED_TRACE("a stream whose first step finds a filesystem");
    std::string text;
    expect_refused(ReadLog(1, &text));
  }
  {
    SCOPED_TRACE("a watch");
    v1::WatchStudyRequest request;
    request.set_name("studies/1");
    auto context = Context();
    v1::WatchStudyResponse response;
    const auto reader = v1::StudyService::NewStub(Unix())->WatchStudy(context.get(), request);
    EXPECT_FALSE(reader->Read(&response));
    expect_refused(reader->Finish());
  }
  store_->RunOutOfMemory(false);
  EXPECT_TRUE(List(Unix()).ok());
}

TEST_F(RpcLimitsTest, TheHealthCheckReportsACoreThreadThatDoesNotAnswer) {
  RpcServerOptions options = Options();
  options.stuck_after = absl::Milliseconds(200);
  Serve(options);
  const std::string method = "/grpc.health.v1.Health/Check";
  ASSERT_EQ(Call(method, ""), std::string("\x08\x01"));
  std::promise<void> release;
  coordinator_->Read([released = release.get_future().share()](const State*) { released.wait(); });
  EXPECT_TRUE(Eventually([&] { return Call(method, "") == std::string("\x08\x02"); }));
  release.set_value();
  EXPECT_TRUE(Eventually([&] { return Call(method, "") == std::string("\x08\x01"); }));
}

TEST_F(RpcLimitsTest, TheHealthCheckIsRightAfterTheClockWasSetBack) {
  RpcServerOptions options = Options();
  options.stuck_after = absl::Milliseconds(200);
  Serve(options);
  std::promise<void> release;
  coordinator_->Read([released = release.get_future().share()](const State*) { released.wait(); });
  ASSERT_TRUE(Eventually([&] { return rpc_->problem() == "core_thread"; }));
  const WallClockShift shift(-3600);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(rpc_->problem(), "core_thread") << i;
    absl::SleepFor(absl::Milliseconds(10));
  }
  release.set_value();
  EXPECT_TRUE(Eventually([&] { return rpc_->problem().empty(); }));
}

TEST_F(RpcLimitsTest, TheHealthCheckReportsADatabaseThatCannotBeWritten) {
  RpcServerOptions options = Options();
  options.stuck_after = absl::Milliseconds(200);
  Serve(options);
  Submit();
  store_->FailCommits(true);
  v1::CreateStudyResponse created;
  EXPECT_FALSE(Create(Creation("ann", ""), &created).ok());
  EXPECT_TRUE(Eventually([&] { return rpc_->problem() == "database"; }));
  store_->FailCommits(false);
  Submit();
  EXPECT_TRUE(Eventually([&] { return rpc_->problem().empty(); }));
}

TEST_F(RpcLimitsTest, TheHealthCheckReportsThatNoCallsOfWorkersAreTaken) {
  RpcServerOptions options = Options();
  options.stuck_after = absl::Milliseconds(200);
  Serve(options);
  // The threads record once a second that they handle calls. Until then, they seem to be blocked.
  EXPECT_TRUE(Eventually([&] {
    clock_.seconds += 3600;
    return rpc_->problem() == "worker_calls";
  }));
  EXPECT_TRUE(Eventually([&] { return rpc_->problem().empty(); }));
}

TEST_F(RpcLimitsTest, TheServiceOfWorkersNotesOnceASecondThatItTakesCalls) {
  clock_.seconds += 3600;
  EXPECT_TRUE(Eventually([&] { return coordinator_->TakesCalls(); }));
  rpc_.reset();
  clock_.seconds += 3600;
  EXPECT_FALSE(coordinator_->TakesCalls());
}

}  // namespace
}  // namespace scalelab::server
