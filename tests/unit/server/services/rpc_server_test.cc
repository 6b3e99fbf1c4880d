// Tests of the gRPC server over real sockets: standard services, authentication, threads.
#include "server/services/rpc_server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <limits>
#include <thread>

#include "db/sqlite_store.h"
#include "scalelab/v1/cluster.grpc.pb.h"
#include "scalelab/v1/run.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "scalelab/v1/worker.grpc.pb.h"
#include "tests/unit/server/core/forwarding_store.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

class IdleScheduler final : public Scheduler {
 public:
  std::string name() const override { return "idle"; }
  Capacity capacity() const override { return {}; }
  absl::StatusOr<std::string> Submit(const JobRequest&) override { return "1"; }
  std::string Script(const JobRequest&) const override { return ""; }
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>&) override {
    return std::vector<JobStatus>();
  }
  absl::StatusOr<ClusterView> View() override {
    if (away) return absl::UnavailableError("sinfo found no controller");
    ClusterView view;
    view.partitions = {{"gpu", true, "UP", absl::Hours(2), 1, 1}};
    view.nodes = {{"n1", {"gpu"}, "MIXED", "", 8, 3, 16000, 2, 1}};
    return view;
  }
  absl::Status Cancel(const std::string&) override { return absl::OkStatus(); }
  std::atomic<bool> away = false;
};

// Counts reads on the core thread, and holds reads on request.
class WatchedStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  // Holds all reads after the next `reads`.
  void HoldAfter(int reads) {
    absl::MutexLock lock(&mutex_);
    may_pass_ = reads;
  }
  void Release() { HoldAfter(std::numeric_limits<int>::max()); }
  void WaitForHeldRead() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* waiting) { return *waiting > 0; }, &waiting_));
  }
  void set_core(std::thread::id core) {
    absl::MutexLock lock(&mutex_);
    core_ = core;
  }
  int reads_on_core() {
    absl::MutexLock lock(&mutex_);
    return reads_on_core_;
  }

 private:
  void BeforeRead() override {
    absl::MutexLock lock(&mutex_);
    if (std::this_thread::get_id() == core_) ++reads_on_core_;
    ++waiting_;
    mutex_.Await(absl::Condition(
        +[](int* may_pass) { return *may_pass > 0; }, &may_pass_));
    --waiting_;
    --may_pass_;
  }

  absl::Mutex mutex_;
  int may_pass_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int>::max();
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int reads_on_core_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread::id core_ ABSL_GUARDED_BY(mutex_);
};

class RpcServerTest : public testing::Test {
 protected:
  RpcServerTest() {
    std::string pattern = "/tmp/scalelab-rpc-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    store_ = std::make_unique<WatchedStore>(*db::OpenSqliteStore({directory_ + "/test.db"}));
    CoordinatorOptions options;
    options.secret_for = [](const std::string&) { return ""; };
    options.new_token = [] { return "token"; };
    coordinator_ = std::make_unique<Coordinator>(std::move(options), *store_, scheduler_);
    EXPECT_TRUE(coordinator_->Start().ok());
    auto rpc = StartRpcServer({{"unix:" + directory_ + "/socket", "127.0.0.1:0"}, "1.2.3"}, *coordinator_,
                              *store_, scheduler_, frameworks_, auth_);
    EXPECT_TRUE(rpc.ok()) << rpc.status();
    rpc_ = *std::move(rpc);
  }
  ~RpcServerTest() override {
    coordinator_->Stop();
    rpc_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::shared_ptr<grpc::Channel> Unix() { return Connect(0); }
  std::shared_ptr<grpc::Channel> Tcp() { return Connect(1); }
  std::shared_ptr<grpc::Channel> Connect(int address) {
    return grpc::CreateChannel(rpc_->addresses()[address], grpc::InsecureChannelCredentials());
  }
  static std::unique_ptr<grpc::ClientContext> Context(const std::string& bearer = "") {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!bearer.empty()) context->AddMetadata("authorization", "Bearer " + bearer);
    return context;
  }
  // Submits a study with one run.
  void Submit() {
    v1::CreateStudyRequest create;
    *create.mutable_spec() = World::Spec({1});
    v1::CreateStudyResponse created;
    ASSERT_TRUE(v1::StudyService::NewStub(Unix())->CreateStudy(Context().get(), create, &created).ok());
  }
  // Returns whether the core thread answers within five seconds.
  bool CoreAnswers() {
    auto answered = std::make_shared<std::promise<std::thread::id>>();
    auto future = answered->get_future();
    coordinator_->Read([answered](const State*) { answered->set_value(std::this_thread::get_id()); });
    if (future.wait_for(std::chrono::seconds(5)) != std::future_status::ready) return false;
    store_->set_core(future.get());
    return true;
  }
  grpc::Status List(std::shared_ptr<grpc::Channel> channel, const std::string& bearer = "") {
    auto context = Context(bearer);
    v1::ListStudiesResponse response;
    return v1::StudyService::NewStub(channel)->ListStudies(context.get(), {}, &response);
  }
  // Sends bytes to any method, as a program without generated stubs does. Returns the first response.
  std::string Call(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(Unix());
    auto context = Context();
    grpc::CompletionQueue queue;
    void* tag = nullptr;
    bool ok = false;
    auto call = stub.PrepareCall(context.get(), method, &queue);
    call->StartCall(&tag);
    queue.Next(&tag, &ok);
    const grpc::Slice slice(bytes);
    call->Write(grpc::ByteBuffer(&slice, 1), &tag);
    queue.Next(&tag, &ok);
    grpc::ByteBuffer answer;
    call->Read(&answer, &tag);
    queue.Next(&tag, &ok);
    std::string text;
    std::vector<grpc::Slice> slices;
    if (ok && answer.Dump(&slices).ok()) {
      for (const grpc::Slice& s : slices) text.append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
    context->TryCancel();
    grpc::Status status;
    call->Finish(&status, &tag);
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    return text;
  }

  std::string directory_;
  IdleScheduler scheduler_;
  Frameworks frameworks_{{}};
  Auth auth_{"right-token", "key"};
  std::unique_ptr<WatchedStore> store_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<RpcServer> rpc_;
};

TEST_F(RpcServerTest, AnswersTheStandardHealthCheck) {
  // HealthCheckRequest{} -> HealthCheckResponse{status: SERVING}: field 1, varint 1.
  EXPECT_EQ(Call("/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
}

TEST_F(RpcServerTest, ReflectionNamesEveryService) {
  // ServerReflectionRequest{list_services: ""}: field 7, length 0.
  const std::string services =
      Call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x00", 2));
  for (const char* name :
       {"StudyService", "RunService", "ResultService", "ClusterService", "WorkerService"}) {
    EXPECT_THAT(services, HasSubstr(std::string("scalelab.v1.") + name));
  }
}

TEST_F(RpcServerTest, TheSocketIsForItsOwnerOnly) {
  struct stat found {};
  ASSERT_EQ(stat((directory_ + "/socket").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(RpcServerTest, TheUnixSocketNeedsNoTokenAndTcpDoes) {
  EXPECT_TRUE(List(Unix()).ok());
  EXPECT_EQ(List(Tcp()).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(List(Tcp(), "wrong").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(List(Tcp(), "right-token").ok());
}

TEST_F(RpcServerTest, AWorkerWithoutItsAllocationsSecretIsTurnedAwayOnEveryTransport) {
  for (const auto& channel : {Unix(), Tcp()}) {
    auto context = Context("right-token");  // a client's token is no worker's secret
    context->AddMetadata("x-scalelab-allocation", "some-allocation");
    v1::SynchronizeResponse response;
    const auto status = v1::WorkerService::NewStub(channel)->Synchronize(context.get(), {}, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  }
}

TEST_F(RpcServerTest, ExplainsWhatLivesFromTheStateAndWhatIsOverFromTheDatabase) {
  const auto studies = v1::StudyService::NewStub(Unix());
  const auto runs = v1::RunService::NewStub(Unix());
  v1::CreateStudyRequest create;
  *create.mutable_spec() = World::Spec({1});
  v1::CreateStudyResponse created;
  ASSERT_TRUE(studies->CreateStudy(Context().get(), create, &created).ok());

  v1::ExplainStudyRequest study;
  study.set_name("studies/last");
  v1::ExplainStudyResponse waits;
  ASSERT_TRUE(studies->ExplainStudy(Context().get(), study, &waits).ok());
  EXPECT_EQ(waits.study().name(), created.study().name());
  EXPECT_FALSE(waits.study().has_spec());
  ASSERT_EQ(waits.reasons_size(), 1);
  EXPECT_EQ(waits.reasons(0).kind(), v1::Reason::SCHEDULER_PENDING);
  v1::ExplainRunRequest run;
  run.set_name("runs/1");
  v1::ExplainRunResponse queued;
  ASSERT_TRUE(runs->ExplainRun(Context().get(), run, &queued).ok());
  EXPECT_EQ(queued.run().state(), v1::Run::QUEUED);
  EXPECT_EQ(queued.run().spec().model(), "resnet20");
  EXPECT_EQ(queued.reasons(0).kind(), v1::Reason::SCHEDULER_PENDING);

  v1::CancelStudyRequest cancel;
  cancel.set_name("studies/last");
  v1::CancelStudyResponse cancelled;
  ASSERT_TRUE(studies->CancelStudy(Context().get(), cancel, &cancelled).ok());
  v1::ExplainStudyResponse over;
  ASSERT_TRUE(studies->ExplainStudy(Context().get(), study, &over).ok());
  EXPECT_EQ(over.study().state(), v1::Study::CANCELLED);
  ASSERT_EQ(over.reasons_size(), 1);
  EXPECT_EQ(over.reasons(0).message(), "it was cancelled; 0 of 1 runs had succeeded");
  v1::ExplainRunResponse ended;
  ASSERT_TRUE(runs->ExplainRun(Context().get(), run, &ended).ok());
  EXPECT_EQ(ended.run().state(), v1::Run::CANCELLED);
  EXPECT_EQ(ended.reasons(0).kind(), v1::Reason::FINAL);

  run.set_name("runs/99");
  EXPECT_EQ(runs->ExplainRun(Context().get(), run, &ended).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(v1::RunService::NewStub(Tcp())->ExplainRun(Context().get(), run, &ended).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(RpcServerTest, TheCoreThreadNeverReadsTheDatabase) {
  ASSERT_TRUE(CoreAnswers());
  const auto studies = v1::StudyService::NewStub(Unix());
  const auto runs = v1::RunService::NewStub(Unix());
  v1::CancelRunRequest run;
  v1::CancelRunResponse run_cancelled;
  v1::CancelStudyRequest cancel;
  cancel.set_name("studies/last");
  v1::CancelStudyResponse cancelled;
  v1::ExplainStudyRequest study;
  study.set_name("studies/last");
  v1::ExplainStudyResponse explained;
  v1::ExplainRunRequest explain;
  v1::ExplainRunResponse run_explained;
  v1::WatchStudyRequest watch;
  watch.set_name("studies/last");
  v1::WatchStudyResponse watched;
  Submit();
  {
    auto context = Context();
    const auto reader = studies->WatchStudy(context.get(), watch);
    ASSERT_TRUE(reader->Read(&watched));
    EXPECT_EQ(watched.study().spec().study(), "test") << "the first message has the specification";
    context->TryCancel();
  }
  run.set_name("runs/1");
  ASSERT_TRUE(runs->CancelRun(Context().get(), run, &run_cancelled).ok());
  EXPECT_EQ(run_cancelled.run().state(), v1::Run::CANCELLED);
  ASSERT_TRUE(studies->CancelStudy(Context().get(), cancel, &cancelled).ok());
  EXPECT_EQ(cancelled.study().state(), v1::Study::CANCELLED);
  ASSERT_TRUE(studies->ExplainStudy(Context().get(), study, &explained).ok());
  EXPECT_EQ(explained.reasons(0).kind(), v1::Reason::FINAL);
  explain.set_name("runs/1");
  ASSERT_TRUE(runs->ExplainRun(Context().get(), explain, &run_explained).ok());
  {
    auto context = Context();
    const auto reader = studies->WatchStudy(context.get(), watch);
    ASSERT_TRUE(reader->Read(&watched));
    EXPECT_EQ(watched.study().state(), v1::Study::CANCELLED);
    EXPECT_EQ(watched.study().spec().study(), "test");
    EXPECT_FALSE(reader->Read(&watched));
    EXPECT_TRUE(reader->Finish().ok());
  }
  EXPECT_EQ(store_->reads_on_core(), 0);
}

TEST_F(RpcServerTest, ASlowReadOfTheDatabaseDoesNotDelayTheCoreThread) {
  Submit();
  ASSERT_TRUE(CoreAnswers());
  store_->HoldAfter(1);  // lets CancelStudy find the study, and holds the read of its response
  auto call = std::async(std::launch::async, [this] {
    v1::CancelStudyRequest cancel;
    cancel.set_name("studies/1");
    v1::CancelStudyResponse cancelled;
    return v1::StudyService::NewStub(Unix())->CancelStudy(Context().get(), cancel, &cancelled);
  });
  store_->WaitForHeldRead();
  EXPECT_TRUE(CoreAnswers());
  store_->Release();
  EXPECT_TRUE(call.get().ok());
}

TEST_F(RpcServerTest, ListedRunsHaveTheirThroughputFromOneQuery) {
  Submit();
  db::RunRow run = *store_->GetRun(1);
  run.state = db::RunState::kSucceeded;
  db::RunSummary summary;
  summary.run_id = 1;
  summary.throughput = 812.5;
  summary.metrics = {{"run/throughput", 812.5}, {"run/steps", 10}};
  db::WriteBatch batch;
  batch.runs.push_back(run);
  batch.summaries.push_back(summary);
  ASSERT_TRUE(store_->Commit(batch).ok());
  v1::ListRunsRequest list;
  list.set_parent("studies/1");
  v1::ListRunsResponse listed;
  ASSERT_TRUE(v1::RunService::NewStub(Unix())->ListRuns(Context().get(), list, &listed).ok());
  ASSERT_EQ(listed.runs_size(), 1);
  EXPECT_EQ(listed.runs(0).summary().size(), 1u);
  EXPECT_EQ(listed.runs(0).summary().at("run/throughput"), 812.5);
}

TEST_F(RpcServerTest, AnAttemptShowsItsFirstMalformedLine) {
  Submit();
  db::WriteBatch batch;
  db::AttemptRow attempt;
  attempt.id = 7;
  attempt.run_id = 1;
  attempt.number = 1;
  attempt.token = "t";
  batch.attempts.push_back(attempt);
  for (const int rank : {2, 1, 0}) {
    db::StreamAppend append;
    append.attempt_id = 7;
    append.rank = rank;
    append.end_position = 10;
    append.malformed = rank;
    if (rank > 0) append.first_malformed = absl::StrCat("line ", 10 * rank, ": is not JSON");
    batch.appends.push_back(append);
  }
  ASSERT_TRUE(store_->Commit(batch).ok());
  v1::GetRunRequest get;
  get.set_name("runs/1");
  v1::GetRunResponse got;
  ASSERT_TRUE(v1::RunService::NewStub(Unix())->GetRun(Context().get(), get, &got).ok());
  ASSERT_EQ(got.run().attempts_size(), 1);
  EXPECT_EQ(got.run().attempts(0).malformed_lines(), 3);
  EXPECT_EQ(got.run().attempts(0).first_malformed_line(), "rank 1, line 10: is not JSON");
}

TEST_F(RpcServerTest, TheClusterIsWhatTheSchedulerHas) {
  v1::GetClusterResponse cluster;
  ASSERT_TRUE(v1::ClusterService::NewStub(Unix())->GetCluster(Context().get(), {}, &cluster).ok());
  ASSERT_EQ(cluster.partitions_size(), 1);
  EXPECT_EQ(cluster.partitions(0).name(), "gpu");
  EXPECT_EQ(cluster.partitions(0).max_time_seconds(), 7200);
  ASSERT_EQ(cluster.nodes_size(), 1);
  EXPECT_EQ(cluster.nodes(0).gpus_allocated(), 1);
  EXPECT_EQ(cluster.scheduler_error(), "");
}

TEST_F(RpcServerTest, ASchedulerThatIsAwayIsToldWithSinceWhen) {
  scheduler_.away = true;
  v1::GetClusterResponse cluster;
  ASSERT_TRUE(v1::ClusterService::NewStub(Unix())->GetCluster(Context().get(), {}, &cluster).ok());
  EXPECT_EQ(cluster.scheduler_error(), "sinfo found no controller");
  EXPECT_GT(cluster.scheduler_error_time().seconds(), 0);
  EXPECT_EQ(cluster.nodes_size(), 0);
  EXPECT_EQ(cluster.scheduler(), "idle");
}

TEST_F(RpcServerTest, EveryEngineIsListedAndOneThatCannotRunIsRefused) {
  v1::ListFrameworksResponse listed;
  ASSERT_TRUE(v1::ClusterService::NewStub(Unix())->ListFrameworks(Context().get(), {}, &listed).ok());
  ASSERT_EQ(listed.frameworks_size(), static_cast<int>(EngineNames().size()));
  for (const v1::Framework& framework : listed.frameworks()) {
    EXPECT_EQ(framework.usable(), framework.engine() == "custom") << framework.engine();
    EXPECT_EQ(framework.reason().empty(), framework.usable()) << framework.engine();
    EXPECT_EQ(framework.fix().empty(), framework.usable()) << framework.engine();
  }
  EXPECT_EQ(v1::ClusterService::NewStub(Tcp())->ListFrameworks(Context().get(), {}, &listed).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);

  v1::CreateStudyRequest create;
  *create.mutable_spec() = World::Spec({1});
  (*create.mutable_spec()->mutable_fixed()->mutable_fields())["engine"].set_string_value("pytorch/ddp");
  for (const bool validate_only : {true, false}) {
    create.set_validate_only(validate_only);
    v1::CreateStudyResponse created;
    const auto refused = v1::StudyService::NewStub(Unix())->CreateStudy(Context().get(), create, &created);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(refused.error_message(), HasSubstr("engine pytorch/ddp cannot run here"));
  }
  v1::PlanStudyRequest plan;
  *plan.mutable_spec() = create.spec();
  v1::PlanStudyResponse planned;
  EXPECT_EQ(v1::StudyService::NewStub(Unix())->PlanStudy(Context().get(), plan, &planned).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcServerTest, ARequestOfMoreThanFourMegabytesIsRefusedAndTheServerLives) {
  auto context = Context();
  v1::CreateStudyRequest request;
  request.set_owner(std::string(5 << 20, 'x'));
  v1::CreateStudyResponse response;
  const auto status = v1::StudyService::NewStub(Unix())->CreateStudy(context.get(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(List(Unix()).ok());
}

TEST_F(RpcServerTest, ASecondServerCannotTakeTheSamePort) {
  const auto second =
      StartRpcServer({{rpc_->addresses()[1]}, "1"}, *coordinator_, *store_, scheduler_, frameworks_, auth_);
  EXPECT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(rpc_->addresses()[1]));
}

}  // namespace
}  // namespace scalelab::server
