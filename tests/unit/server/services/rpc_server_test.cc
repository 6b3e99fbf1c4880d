// Tests of the gRPC server over real sockets: standard services, authentication, threads.
#include "server/core/outcome.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

TEST_F(RpcServerTest, AnswersTheStandardHealthCheck) {
  // HealthCheckRequest{} -> HealthCheckResponse{status: SERVING}: field 1, varint 1.
  EXPECT_EQ(Call("/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
}

TEST_F(RpcServerTest, ReflectionIsOffUnlessItIsConfigured) {
  EXPECT_EQ(
      Call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x00", 2)), "");
}

TEST_F(RpcServerTest, ReflectionNamesEveryService) {
  RpcServerOptions options = Options();
  options.reflection = true;
  Serve(options);
  // ServerReflectionRequest{list_services: ""}: field 7, length 0.
  const std::string services =
      Call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x00", 2));
  for (const char* name :
       {"StudyService", "RunService", "ResultService", "ClusterService", "AdminService", "WorkerService"}) {
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

TEST_F(RpcServerTest, APageOfRunsWithLongParametersHasFewerRuns) {
  const std::string script(1 << 20, '#');
  v1::CreateStudyRequest create;
  create.mutable_spec()->MergeFrom(World::Spec({1, 2}, 20));
  auto& fixed = *create.mutable_spec()->mutable_fixed()->mutable_fields();
  fixed["engine"].set_string_value("custom");
  fixed["command"].mutable_list_value()->add_values()->set_string_value("sh");
  fixed["command"].mutable_list_value()->add_values()->set_string_value(script);
  v1::CreateStudyResponse created;
  const grpc::Status status =
      v1::StudyService::NewStub(Unix())->CreateStudy(Context().get(), create, &created);
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::ChannelArguments large;
  large.SetMaxReceiveMessageSize(-1);
  const auto stub = v1::RunService::NewStub(
      grpc::CreateCustomChannel(rpc_->addresses()[0], grpc::InsecureChannelCredentials(), large));
  v1::ListRunsRequest list;
  list.set_parent("studies/1");
  int pages = 0, runs = 0;
  do {
    v1::ListRunsResponse page;
    ASSERT_TRUE(stub->ListRuns(Context().get(), list, &page).ok());
    EXPECT_LT(page.ByteSizeLong(), 20u << 20);
    for (const v1::Run& run : page.runs()) {
      EXPECT_EQ(run.position(), runs++);
      EXPECT_EQ(run.spec().command(1), script);
      EXPECT_EQ(run.spec().ranks(), run.key().fields().at("ranks").number_value());
      EXPECT_EQ(run.spec().seed(), run.repeat());
    }
    list.set_page_token(page.next_page_token());
    ++pages;
  } while (!list.page_token().empty());
  EXPECT_EQ(runs, 40);
  EXPECT_GT(pages, 1);
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

TEST_F(RpcServerTest, ARunShowsTheResultsOfAllItsAttempts) {
  Submit();
  db::WriteBatch batch;
  for (const int number : {1, 2}) {
    db::AttemptRow& attempt = batch.attempts.emplace_back();
    attempt.id = 6 + number;
    attempt.run_id = 1;
    attempt.number = number;
    attempt.token = absl::StrCat("t", number);
  }
  batch.attempts[0].state = db::AttemptState::kFailed;
  batch.attempts[0].cause = db::Cause::kNoisy;
  batch.attempts[0].throughput = 700.5;
  batch.attempts[1].state = db::AttemptState::kSucceeded;
  db::RunSummary summary;
  summary.run_id = 1;
  summary.attempt_id = 8;
  summary.throughput = 812.25;
  summary.epoch_seconds = 8.5;
  batch.summaries.push_back(summary);
  ASSERT_TRUE(store_->Commit(batch).ok());
  v1::GetRunRequest get;
  get.set_name("runs/1");
  v1::GetRunResponse got;
  ASSERT_TRUE(v1::RunService::NewStub(Unix())->GetRun(Context().get(), get, &got).ok());
  ASSERT_EQ(got.run().attempts_size(), 2);
  EXPECT_EQ(got.run().attempts(0).throughput(), 700.5);
  EXPECT_FALSE(got.run().attempts(0).has_epoch_seconds());
  EXPECT_EQ(got.run().attempts(1).throughput(), 812.25);
  EXPECT_EQ(got.run().attempts(1).epoch_seconds(), 8.5);
}

TEST_F(RpcServerTest, ARunShowsItsFingerprintAndItsNodes) {
  Submit();
  db::WriteBatch batch;
  db::AttemptRow attempt;
  attempt.id = 7;
  attempt.run_id = 1;
  attempt.number = 1;
  attempt.token = "t";
  batch.attempts.push_back(attempt);
  v1::NodeInfo node;
  node.set_cpu_model("EPYC");
  node.add_gpus("H200");
  (*node.mutable_software())["libtorch"] = "1.13.1";
  v1::CodeSnapshot code;
  code.add_files()->set_path("/home/ada/train.py");
  code.set_git_commit("abcd");
  batch.provenance.push_back({7, ProvenanceJson({node}, {}, code)});
  db::RunSummary summary;
  summary.run_id = 1;
  summary.attempt_id = 7;
  summary.fingerprint = "a1b2";
  batch.summaries.push_back(summary);
  ASSERT_TRUE(store_->Commit(batch).ok());
  v1::GetRunRequest get;
  get.set_name("runs/1");
  v1::GetRunResponse got;
  ASSERT_TRUE(v1::RunService::NewStub(Unix())->GetRun(Context().get(), get, &got).ok());
  ASSERT_EQ(got.run().attempts_size(), 1);
  ASSERT_EQ(got.run().attempts(0).node_infos_size(), 1);
  EXPECT_EQ(got.run().attempts(0).node_infos(0).gpus(0), "H200");
  EXPECT_EQ(got.run().attempts(0).code().git_commit(), "abcd");
  EXPECT_EQ(got.run().attempts(0).node_infos(0).software().at("libtorch"), "1.13.1");
  EXPECT_EQ(got.run().fingerprint(), "a1b2");
  v1::ListRunsRequest list;
  list.set_parent("studies/1");
  v1::ListRunsResponse listed;
  ASSERT_TRUE(v1::RunService::NewStub(Unix())->ListRuns(Context().get(), list, &listed).ok());
  EXPECT_EQ(listed.runs(0).fingerprint(), "a1b2");
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
  RpcServerOptions options = Options();
  options.listen = {rpc_->addresses()[1]};
  const auto second = StartRpcServer(options, *coordinator_, *store_, scheduler_, frameworks_, auth_);
  EXPECT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(rpc_->addresses()[1]));
}

}  // namespace
}  // namespace scalelab::server
