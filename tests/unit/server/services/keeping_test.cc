// Tests of retention and notifications through the API.
#include <fstream>

#include "db/outbox/outbox.h"
#include "db/retention/retention.h"
#include "proto/status.h"
#include "scalelab/v1/admin.grpc.pb.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "tests/contract/store_fixture.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

class Keeping : public RpcServerTest {
 protected:
  // Commits a final study with one run and one attempt with points and a log.
  void CommitFinalStudy() {
    db::WriteBatch batch;
    batch.studies = {db::AStudy(100)};
    batch.studies[0].state = db::StudyState::kSucceeded;
    batch.studies[0].finished = kEnd;
    batch.studies[0].runs = 1;
    batch.cells = {db::ACell(100, 100)};
    batch.cells[0].key = batch.cells[0].spec = R"({"ranks":1})";
    batch.runs = {db::ARun(100, 100, 100)};
    batch.runs[0].state = db::RunState::kSucceeded;
    batch.attempts = {db::AnAttempt(100, 100)};
    batch.attempts[0].state = db::AttemptState::kSucceeded;
    batch.attempts[0].finished = kEnd;
    batch.attempts[0].directory = directory_;
    batch.appends = {db::AnAppend(100, 0, 0, 30)};
    batch.appends[0].columns = {db::AColumn("loss", 0, {1, 2, 3})};
    ASSERT_TRUE(store_->Commit(batch).ok());
    std::ofstream(directory_ + "/rank-0.out") << "hello";
  }
  grpc::Status ReadPoints(int* points) {
    v1::ReadPointsRequest request;
    request.set_run("runs/100");
    auto context = Context();
    const auto stub = v1::ResultService::NewStub(Unix());
    auto reader = stub->ReadPoints(context.get(), request);
    v1::ReadPointsResponse response;
    while (reader->Read(&response)) *points += response.value_size();
    return reader->Finish();
  }
  grpc::Status ReadLog(std::string* text) {
    v1::ReadRunLogRequest request;
    request.set_name("runs/100");
    auto context = Context();
    const auto stub = v1::RunService::NewStub(Unix());
    auto reader = stub->ReadRunLog(context.get(), request);
    v1::ReadRunLogResponse response;
    while (reader->Read(&response)) *text += response.data();
    return reader->Finish();
  }
  std::string Explain() {
    v1::ExplainStudyRequest request;
    request.set_name("studies/100");
    v1::ExplainStudyResponse response;
    const grpc::Status status =
        v1::StudyService::NewStub(Unix())->ExplainStudy(Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::string text;
    for (const auto& reason : response.reasons()) text += reason.message() + "\n";
    return text;
  }
  static constexpr db::Micros kEnd = 1'700'000'000'000'000;
};

TEST_F(Keeping, ShortAndLongSeriesAreReadWithAllTheirPoints) {
  CommitFinalStudy();
  // The runs have more points than the service keeps in memory.
  std::map<std::string, size_t> sizes = {{"loss", 3}};
  db::WriteBatch batch;
  batch.appends = {db::AnAppend(100, 0, 30, 50'030)};
  for (int i = 0; i < 200; ++i) {
    const std::string key = absl::StrCat("metric/", i);
    sizes[key] = i % 10 == 0 ? 1024 + i * 20 : 1 + i * 11 % 1000;
    batch.appends[0].columns.push_back(db::AColumn(key, 3, std::vector<double>(sizes[key], i)));
  }
  ASSERT_TRUE(store_->Commit(batch).ok());
  v1::ReadPointsRequest request;
  request.set_run("runs/100");
  const auto stub = v1::ResultService::NewStub(Unix());
  for (const int most : {0, 5}) {
    request.set_max_points(most);
    auto context = Context();
    auto reader = stub->ReadPoints(context.get(), request);
    v1::ReadPointsResponse response;
    std::map<std::string, size_t> read;
    while (reader->Read(&response)) {
      read[response.key()] += response.value_size();
      if (response.key() == "loss") continue;
      for (const double value : response.value()) EXPECT_EQ(absl::StrCat("metric/", value), response.key());
    }
    ASSERT_TRUE(reader->Finish().ok());
    std::map<std::string, size_t> expected;
    for (const auto& [key, size] : sizes) expected[key] = most == 0 ? size : std::min<size_t>(size, most);
    EXPECT_EQ(read, expected);
  }
}

TEST_F(Keeping, ReadersOfRemovedDataGetTheReasonAndTheDate) {
  CommitFinalStudy();
  int points = 0;
  std::string log;
  ASSERT_TRUE(ReadPoints(&points).ok());
  ASSERT_TRUE(ReadLog(&log).ok());
  EXPECT_EQ(points, 3);
  EXPECT_EQ(log, "hello");
  EXPECT_THAT(Explain(), testing::Not(HasSubstr("retention")));
  ASSERT_TRUE(db::BeginRemoval(*store_, db::Removal::kPoints, 100, kEnd + 86'400'000'000).ok());
  ASSERT_TRUE(db::BeginRemoval(*store_, db::Removal::kLogs, 100, kEnd + 86'400'000'000).ok());
  points = 0;
  const grpc::Status no_points = ReadPoints(&points);
  EXPECT_EQ(points, 0);
  EXPECT_EQ(no_points.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ReasonOf(FromGrpc(no_points)), "REMOVED_BY_RETENTION");
  EXPECT_THAT(no_points.error_message(),
              HasSubstr("the points of studies/100/runs/100 were removed by retention on 2023-11-15"));
  const grpc::Status no_log = ReadLog(&log);
  EXPECT_EQ(no_log.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(no_log.error_message(),
              HasSubstr("the logs of studies/100/runs/100 were removed by retention"));
  EXPECT_THAT(Explain(), HasSubstr("its points were removed by retention"));
  EXPECT_THAT(Explain(), HasSubstr("its logs were removed by retention"));
}

TEST_F(Keeping, PointsThatAreRemovedWhileTheyAreReadDoNotLookComplete) {
  CommitFinalStudy();
  // So many points that the service cannot send them before the client reads them.
  db::WriteBatch batch;
  batch.appends = {db::AnAppend(100, 0, 30, 50'030)};
  for (int i = 0; i < 100; ++i)
    batch.appends[0].columns.push_back(
        db::AColumn(absl::StrCat("metric/", i), 3, std::vector<double>(5'000, i)));
  ASSERT_TRUE(store_->Commit(batch).ok());
  v1::ReadPointsRequest request;
  request.set_run("runs/100");
  auto context = Context();
  const auto stub = v1::ResultService::NewStub(Unix());
  auto reader = stub->ReadPoints(context.get(), request);
  v1::ReadPointsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_TRUE(db::BeginRemoval(*store_, db::Removal::kPoints, 100, kEnd + 86'400'000'000).ok());
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
  EXPECT_EQ(ReasonOf(FromGrpc(status)), "REMOVED_BY_RETENTION");
}

TEST_F(Keeping, PruneIsPassedOn) {
  v1::PruneRequest request;
  v1::PruneResponse response;
  const auto call = [&] {
    return v1::AdminService::NewStub(Unix())->Prune(Context().get(), request, &response);
  };
  EXPECT_EQ(call().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  RpcServerOptions options = Options();
  options.prune = [](bool dry_run, const std::function<bool()>& over) -> absl::StatusOr<v1::PruneResponse> {
    if (over()) return absl::CancelledError("over");
    v1::PruneResponse pruned;
    pruned.set_database_bytes_before(dry_run ? 1 : 2);
    return pruned;
  };
  Serve(options);
  ASSERT_TRUE(call().ok());
  EXPECT_EQ(response.database_bytes_before(), 2);
  request.set_dry_run(true);
  ASSERT_TRUE(call().ok());
  EXPECT_EQ(response.database_bytes_before(), 1);
}

TEST_F(Keeping, ACallWithoutATokenCannotPrune) {
  v1::PruneResponse response;
  EXPECT_EQ(v1::AdminService::NewStub(Tcp())->Prune(Context().get(), {}, &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(Keeping, ANotificationThatCouldNotBeSentIsExplained) {
  CommitFinalStudy();
  db::WriteBatch batch;
  db::NoticeRow& row = batch.notices.emplace_back();
  row.key = "studies/100/end";
  row.study_id = 100;
  row.channel = "webhook";
  row.created = row.due = kEnd;
  ASSERT_TRUE(store_->Commit(batch).ok());
  EXPECT_THAT(Explain(), testing::Not(HasSubstr("notification")));
  db::NoticeRow stored = db::ListDueNotices(*store_, kEnd, 1)->at(0);
  stored.attempts = 1;
  stored.error = "no route to host";
  ASSERT_TRUE(db::UpdateNotice(*store_, stored).ok());
  EXPECT_THAT(Explain(), HasSubstr("a notification (webhook) is not sent yet: no route to host"));
  stored.state = db::NoticeRow::State::kGivenUp;
  ASSERT_TRUE(db::UpdateNotice(*store_, stored).ok());
  EXPECT_THAT(Explain(), HasSubstr("a notification (webhook) could not be sent: no route to host"));
  stored.error = "smtp: \xe2";  // the beginning of a character
  ASSERT_TRUE(db::UpdateNotice(*store_, stored).ok());
  EXPECT_THAT(Explain(), HasSubstr("a notification (webhook) could not be sent: smtp: ?"));
}

TEST_F(Keeping, AStudyCannotNameACommandThatTheConfigurationDoesNotHave) {
  v1::CreateStudyRequest create;
  *create.mutable_spec() = World::Spec({1});
  create.mutable_spec()->mutable_notify()->set_command("chat");
  v1::CreateStudyResponse created;
  const auto call = [&] {
    return v1::StudyService::NewStub(Unix())->CreateStudy(Context().get(), create, &created);
  };
  const grpc::Status refused = call();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("notify_commands"));
  RpcServerOptions options = Options();
  options.notify_commands = {"chat"};
  Serve(options);
  EXPECT_TRUE(call().ok());
}

}  // namespace
}  // namespace scalelab::server
