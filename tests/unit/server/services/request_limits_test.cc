// Tests of requests that are repeated, invalid, expensive or many, and of answers that are large.
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <numeric>

#include "absl/synchronization/notification.h"
#include "analysis/downsample.h"
#include "db/continued_points.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "server/curves/study_curve.h"
#include "tests/unit/server/services/rpc_limits_fixture.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

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
  ASSERT_TRUE(ReadsPause());
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
  ASSERT_TRUE(ReadsPause());
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
