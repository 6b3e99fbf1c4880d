// Tests that one caller cannot disturb others: blocked reads, large requests, many watches, names.
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "absl/synchronization/notification.h"
#include "analysis/downsample.h"
#include "db/continued_points.h"
#include "proto/status.h"
#include "scalelab/v1/admin.grpc.pb.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "server/curves/study_curve.h"
#include "server/identity/secrets.h"
#include "tests/contract/store_fixture.h"
#include "tests/fakes/hanging_directory.h"
#include "tests/fakes/wall_clock.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

class RpcLimitsTest : public RpcServerTest {
 protected:
  ~RpcLimitsTest() override { store_->Release(); }

  // Waits for `condition` for up to ten seconds.
  static bool Eventually(const std::function<bool()>& condition) {
    for (const absl::Time end = absl::Now() + absl::Seconds(10); absl::Now() < end;) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return condition();
  }
  // Returns the number of calls that wait for a thread of the pool.
  int Queued(const std::string& pool) {
    for (const auto& [name, calls] : rpc_->queued_calls()) {
      if (name == pool) return static_cast<int>(calls);
    }
    return -1;
  }
  grpc::Status Create(v1::CreateStudyRequest request, v1::CreateStudyResponse* created) {
    return v1::StudyService::NewStub(Unix())->CreateStudy(Context().get(), request, created);
  }
  static v1::CreateStudyRequest Creation(const std::string& owner, const std::string& request_id) {
    v1::CreateStudyRequest request;
    *request.mutable_spec() = World::Spec({1});
    request.set_owner(owner);
    request.set_request_id(request_id);
    return request;
  }
  // Stores a final study whose runs have an attempt in each of the directories. The first run is runs/100.
  void StoreAttemptsIn(const std::vector<std::string>& directories) {
    db::WriteBatch batch;
    batch.studies = {db::AStudy(100)};
    batch.studies[0].state = db::StudyState::kSucceeded;
    batch.cells = {db::ACell(100, 100)};
    for (size_t i = 0; i < directories.size(); ++i) {
      const auto id = static_cast<int64_t>(100 + i);
      batch.runs.push_back(db::ARun(id, 100, 100));
      batch.runs.back().state = db::RunState::kSucceeded;
      batch.attempts.push_back(db::AnAttempt(id, id));
      batch.attempts.back().state = db::AttemptState::kSucceeded;
      batch.attempts.back().directory = directories[i];
    }
    ASSERT_TRUE(store_->Commit(batch).ok());
  }
  grpc::Status ReadLog(int run, std::string* text) {
    v1::ReadRunLogRequest request;
    request.set_name(absl::StrCat("runs/", run));
    auto context = Context();
    v1::ReadRunLogResponse response;
    auto reader = v1::RunService::NewStub(Unix())->ReadRunLog(context.get(), request);
    while (reader->Read(&response)) *text += response.data();
    return reader->Finish();
  }
  // Stores an attempt of run 1 with `keys` metrics of `points` points.
  void StorePoints(int keys, int points) {
    Submit();
    db::WriteBatch batch;
    db::AttemptRow attempt;
    attempt.id = 7;
    attempt.run_id = 1;
    attempt.number = 1;
    attempt.token = "t";
    batch.attempts.push_back(attempt);
    db::StreamAppend append;
    append.attempt_id = 7;
    append.end_position = 10;
    append.end_line = points;
    for (int key = 0; key < keys; ++key) {
      db::PointColumn column;
      column.key = absl::StrCat("metric/", key);
      for (int i = 0; i < points; ++i) {
        column.line.push_back(i);
        column.step.push_back(i);
        column.time.push_back(i);
        column.value.push_back(i * 0.1 + key);
      }
      append.columns.push_back(std::move(column));
    }
    batch.appends.push_back(std::move(append));
    ASSERT_TRUE(store_->Commit(batch).ok());
  }
};

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

TEST_F(RpcLimitsTest, ARetryIsAnsweredThoughTheStudyIsNoLongerValid) {
  v1::CreateStudyRequest request = Creation("ann", "retry-1");
  (*request.mutable_spec()->mutable_matrix(0)->mutable_values(0)).set_number_value(16);
  v1::CreateStudyResponse first, again;
  ASSERT_TRUE(Create(request, &first).ok());
  scheduler_.slots = 2;  // a study of 16 ranks is refused now
  const grpc::Status status = Create(request, &again);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(again.study().name(), first.study().name());
  request.set_request_id("retry-2");
  EXPECT_EQ(Create(request, &again).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcLimitsTest, ARequestIdOfAnotherSpecificationIsRefused) {
  v1::CreateStudyResponse created;
  ASSERT_TRUE(Create(Creation("ann", "id"), &created).ok());
  v1::CreateStudyRequest other = Creation("ann", "id");
  other.mutable_spec()->set_repeats(2);
  EXPECT_EQ(Create(other, &created).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(Create(Creation("bob", "id"), &created).ok()) << "request ids belong to owners";
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

TEST_F(RpcLimitsTest, ACurveThatNobodyWaitsForIsNotComputed) {
  StorePoints(1, 10);
  const auto study = store_->GetStudy(1);
  ASSERT_TRUE(study.ok()) << study.status();
  // The question is asked after the rows of the study are read, and again after the points are read.
  for (const int over_at : {1, 2, 3}) {
    int asked = 0;
    v1::GetCurveResponse curve;
    const absl::Status made = MakeStudyCurve(
        *store_, *study, /*factors=*/true, [&] { return ++asked >= over_at; }, &curve);
    EXPECT_EQ(asked, std::min(over_at, 2));
    EXPECT_EQ(made.code(), over_at < 3 ? absl::StatusCode::kCancelled : absl::StatusCode::kOk) << made;
    EXPECT_EQ(curve.study(), over_at < 3 ? "" : "studies/1");
  }
}

TEST_F(RpcLimitsTest, TheReferenceOfACurveMustExist) {
  StorePoints(1, 10);
  const auto get = [this](const std::string& reference) {
    v1::GetCurveRequest request;
    request.set_study("studies/1");
    request.set_reference(reference);
    v1::GetCurveResponse curve;
    return v1::ResultService::NewStub(Unix())->GetCurve(Context().get(), request, &curve).error_code();
  };
  EXPECT_EQ(get("studies/99"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(get("studies/1"), grpc::StatusCode::OK);
}

TEST_F(RpcLimitsTest, OwnersAndRequestIdsAreShortAndHaveSafeCharacters) {
  v1::CreateStudyResponse created;
  EXPECT_TRUE(Create(Creation("ann.lee@lab-2", std::string(100, 'x')), &created).ok());
  EXPECT_TRUE(Create(Creation(std::string(64, 'x'), ""), &created).ok());
  for (const std::string& owner : {std::string(65, 'x'), std::string("a\nb"), std::string("a b"),
                                   std::string("\xe2\x80\xae"
                                               "evil"),
                                   std::string("a\x1b[2J")}) {
    const grpc::Status status = Create(Creation(owner, ""), &created);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << owner;
    EXPECT_THAT(status.error_message(), HasSubstr("owner"));
  }
  for (const std::string& id : {std::string(101, 'x'), std::string("a\nb")}) {
    EXPECT_EQ(Create(Creation("ann", id), &created).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << id;
  }
}

TEST_F(RpcLimitsTest, WatchesOfOneClientAreLimitedAndADisconnectedOneMakesRoomAtOnce) {
  Submit();  // nothing changes afterwards
  const auto stub = v1::StudyService::NewStub(Unix());
  v1::WatchStudyRequest request;
  request.set_name("studies/1");
  struct Watch {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::WatchStudyResponse>> reader;
  };
  const auto open = [&] {
    Watch watch{Context(), nullptr};
    watch.reader = stub->WatchStudy(watch.context.get(), request);
    return watch;
  };
  std::vector<Watch> watches;
  v1::WatchStudyResponse state;
  for (int i = 0; i < 128; ++i) {
    watches.push_back(open());
    ASSERT_TRUE(watches.back().reader->Read(&state)) << i;
    EXPECT_EQ(state.study().spec().study(), "test") << "also for those that share a description";
  }
  Watch refused = open();
  EXPECT_FALSE(refused.reader->Read(&state));
  const grpc::Status status = refused.reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("128 watches"));
  for (Watch& watch : watches) watch.context->TryCancel();
  EXPECT_TRUE(Eventually([&] {
    Watch next = open();
    return next.reader->Read(&state);
  }));
}

TEST_F(RpcLimitsTest, EveryWatcherOfAStudyGetsItsLastState) {
  Submit();
  const auto stub = v1::StudyService::NewStub(Unix());
  v1::WatchStudyRequest request;
  request.set_name("studies/1");
  std::vector<std::future<v1::Study::State>> last;
  std::atomic<int> started = 0;
  for (int i = 0; i < 8; ++i) {
    last.push_back(std::async(std::launch::async, [&] {
      auto context = Context();
      const auto reader = stub->WatchStudy(context.get(), request);
      v1::WatchStudyResponse state;
      v1::Study::State newest = v1::Study::STATE_UNSPECIFIED;
      while (reader->Read(&state)) {
        newest = state.study().state();
        ++started;
      }
      return newest;
    }));
  }
  ASSERT_TRUE(Eventually([&] { return started >= 8; }));
  v1::CancelStudyRequest cancel;
  cancel.set_name("studies/1");
  v1::CancelStudyResponse cancelled;
  ASSERT_TRUE(stub->CancelStudy(Context().get(), cancel, &cancelled).ok());
  for (auto& state : last) EXPECT_EQ(state.get(), v1::Study::CANCELLED);
}

TEST_F(RpcLimitsTest, PointsAreReadNoFasterThanTheClientTakesThem) {
  constexpr int kKeys = 300;
  StorePoints(kKeys, 2000);  // about 48 KB a message
  v1::ReadPointsRequest request;
  request.set_run("runs/1");
  auto context = Context();
  const auto reader = v1::ResultService::NewStub(Unix())->ReadPoints(context.get(), request);
  v1::ReadPointsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  int before = -1;
  ASSERT_TRUE(Eventually([&] {
    const int now = store_->reads();
    absl::SleepFor(absl::Milliseconds(100));
    return std::exchange(before, now) == now;
  }));
  EXPECT_LT(store_->reads(), kKeys);
  int messages = 1;
  double sum = response.value(0);
  while (reader->Read(&response)) {
    ++messages;
    EXPECT_EQ(response.value_size(), 2000);
    sum += response.value(0);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(messages, kKeys);
  EXPECT_EQ(sum, kKeys * (kKeys - 1) / 2.0);
  request.set_max_points(2);
  request.set_key("metric/3");
  auto again = Context();
  const auto few = v1::ResultService::NewStub(Unix())->ReadPoints(again.get(), request);
  ASSERT_TRUE(few->Read(&response));
  EXPECT_EQ(response.value_size(), 2);
  EXPECT_FALSE(few->Read(&response));
}

TEST_F(RpcLimitsTest, ALongSeriesIsReadInPieces) {
  constexpr size_t kPoints = 300'000, kPieces = kPoints / db::kPointsPerPiece + 1;
  StorePoints(1, kPoints);
  std::vector<double> x, y;
  for (size_t i = 0; i < kPoints; ++i) {
    x.push_back(static_cast<double>(i));
    y.push_back(static_cast<double>(i) * 0.1);
  }
  const auto stub = v1::ResultService::NewStub(Unix());
  for (const size_t most : {size_t{0}, size_t{2}, size_t{1000}, size_t{40'000}, kPoints}) {
    SCOPED_TRACE(most);
    std::vector<size_t> chosen(kPoints);
    std::iota(chosen.begin(), chosen.end(), size_t{0});
    if (most > 0) chosen = analysis::Downsample(x, y, most);
    v1::ReadPointsRequest request;
    request.set_run("runs/1");
    request.set_max_points(static_cast<int>(most));
    const int before = store_->reads();
    auto context = Context();
    const auto reader = stub->ReadPoints(context.get(), request);
    v1::ReadPointsResponse response;
    size_t read = 0, wrong = 0;
    while (reader->Read(&response)) {
      EXPECT_LE(static_cast<size_t>(response.value_size()), db::kPointsPerPiece);
      for (int i = 0; i < response.value_size(); ++i, ++read) {
        if (read >= chosen.size() || response.value(i) != y[chosen[read]] ||
            response.step(i) != static_cast<int64_t>(chosen[read]))
          ++wrong;
      }
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_EQ(read, chosen.size());
    EXPECT_EQ(wrong, 0u);
    // To choose points by their triangles, the series is read twice.
    const int reads = store_->reads() - before;
    const int pieces = static_cast<int>(most > 2 && most < kPoints ? 2 * kPieces - 1 : kPieces);
    EXPECT_GE(reads, pieces);
    EXPECT_LE(reads, pieces + 20);
  }
}

TEST_F(RpcLimitsTest, ALongSeriesIsReadNoFasterThanTheClientTakesIt) {
  constexpr int kPoints = 1'500'000;  // about 30 MB
  StorePoints(1, kPoints);
  v1::ReadPointsRequest request;
  request.set_run("runs/1");
  const int begin = store_->reads();
  auto context = Context();
  const auto reader = v1::ResultService::NewStub(Unix())->ReadPoints(context.get(), request);
  v1::ReadPointsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  int before = -1;
  ASSERT_TRUE(Eventually([&] {
    const int now = store_->reads();
    absl::SleepFor(absl::Milliseconds(100));
    return std::exchange(before, now) == now;
  }));
  EXPECT_LT(store_->reads() - begin, kPoints / static_cast<int>(db::kPointsPerPiece));
  // The rest is not read when the client has gone.
  context->TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_LT(store_->reads() - begin, kPoints / static_cast<int>(db::kPointsPerPiece));
}

TEST_F(RpcLimitsTest, ManySeriesAreListedInPages) {
  constexpr int kKeys = static_cast<int>(db::kSeriesPerPage) + 100;
  StorePoints(kKeys, 1);
  v1::ReadPointsRequest request;
  request.set_run("runs/1");
  auto context = Context();
  const auto reader = v1::ResultService::NewStub(Unix())->ReadPoints(context.get(), request);
  v1::ReadPointsResponse response;
  std::vector<std::string> keys;
  while (reader->Read(&response)) keys.push_back(response.key());
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(keys.size(), static_cast<size_t>(kKeys));
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
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

TEST_F(RpcLimitsTest, AnExpensiveExcludeIsRefusedAndALargeOneIsFast) {
  v1::PlanStudyRequest plan;
  v1::StudySpec& spec = *plan.mutable_spec();
  spec = World::Spec({1});
  const auto add_axis = [&](const std::string& key, int values) {
    auto* axis = spec.add_matrix();
    axis->set_key(key);
    for (int i = 1; i <= values; ++i) axis->add_values()->set_number_value(i);
  };
  add_axis("max_steps", 300);
  add_axis("comm_timeout_s", 200);
  for (int i = 1; i <= 1000; ++i) {
    auto& fields = *spec.add_exclude()->mutable_fields();
    fields["max_steps"].set_number_value(1 + i % 300);
    fields["comm_timeout_s"].set_number_value(1 + i % 200);
  }
  v1::PlanStudyResponse planned;
  grpc::ChannelArguments large;
  large.SetMaxReceiveMessageSize(-1);
  const auto stub = v1::StudyService::NewStub(
      grpc::CreateCustomChannel(rpc_->addresses()[0], grpc::InsecureChannelCredentials(), large));
  const grpc::Status status = stub->PlanStudy(Context().get(), plan, &planned);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(planned.excluded(), 600);
  EXPECT_EQ(planned.cells_size(), 300 * 200 - 600);
  for (int i = 0; i < 1000; ++i)
    (*spec.mutable_exclude(i)->mutable_fields())["global_batch"].set_number_value(64);
  const grpc::Status refused = stub->PlanStudy(Context().get(), plan, &planned);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_THAT(refused.error_message(), HasSubstr("exclude"));
}

TEST_F(RpcLimitsTest, ReportsOfManyWorkersAreReadAFewAtATime) {
  absl::Notification release;
  coordinator_->Read([&](const State*) { release.WaitForNotification(); });
  v1::ReportEventsRequest report;
  v1::EventBatch& batch = *report.add_batches();
  batch.set_end_position(10'000'000);
  batch.set_end_line(100'000);
  auto& column = *batch.add_columns();
  column.set_key("step/metric");
  for (int i = 0; i < 100'000; ++i) {
    column.add_line(i);
    column.add_step(i);
    column.add_time(i);
    column.add_value(0.1 * i);
  }
  const grpc::Slice slice(report.SerializeAsString());
  const grpc::ByteBuffer message(&slice, 1);
  constexpr int kCalls = 100;
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  };
  // Each call has its own connection. The write of its message completes when the server has
  // read the message.
  grpc::CompletionQueue queue;
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::vector<Call> calls;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  void* tag = nullptr;
  bool ok = false;
  for (int i = 0; i < kCalls; ++i) {
    stubs.push_back(std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(rpc_->addresses()[0], grpc::InsecureChannelCredentials(), own)));
    Call& call = calls.emplace_back();
    call.context = Context(auth_.SecretFor("a"));
    call.context->AddMetadata("x-scalelab-allocation", "a");
    call.stream =
        stubs.back()->PrepareCall(call.context.get(), "/scalelab.v1.WorkerService/ReportEvents", &queue);
    call.stream->StartCall(&call);
    ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  }
  for (Call& call : calls) call.stream->WriteLast(message, grpc::WriteOptions(), &call);
  int written = 0;
  const auto next_within = [&](absl::Duration limit) {
    return queue.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + limit)) ==
           grpc::CompletionQueue::GOT_EVENT;
  };
  while (next_within(absl::Seconds(2))) written += ok ? 1 : 0;
  EXPECT_GE(written, 1);
  EXPECT_LE(written, 20) << "the server has read messages that it cannot store yet";
  release.Notify();
  while (written < kCalls && next_within(absl::Seconds(20))) written += ok ? 1 : 0;
  EXPECT_EQ(written, kCalls);
  int accepted = 0;
  for (Call& call : calls) {
    grpc::ByteBuffer answer;
    grpc::Status status;
    call.stream->Read(&answer, &call);
    ASSERT_TRUE(next_within(absl::Seconds(20)));
    call.stream->Finish(&status, &call);
    ASSERT_TRUE(next_within(absl::Seconds(20)));
    EXPECT_TRUE(status.ok()) << status.error_message();
    accepted += status.ok() ? 1 : 0;
  }
  EXPECT_EQ(accepted, kCalls);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

}  // namespace
}  // namespace scalelab::server
