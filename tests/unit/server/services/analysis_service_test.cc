// Tests of AnalysisService and PredictionService through the API: limits, pages, and studies that the caller may not see.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "scalelab/v1/analysis.grpc.pb.h"
#include "scalelab/v1/prediction.grpc.pb.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "server/identity/secrets.h"
#include "tests/contract/store_fixture.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr double kOneRank = 100;  // samples/s

class AnalysisServiceTest : public RpcServerTest {
 protected:
  AnalysisServiceTest() {
    for (const char* user : {"alice", "bob"}) {
      db::TokenRow row;
      row.user = user;
      row.scope = static_cast<int>(Scope::kSubmit);
      row.hash = Sha256(user);
      EXPECT_TRUE(store_->PutToken(row).ok());
    }
    RpcServerOptions options = Options();
    options.identity.roles = {{}, {"alice", "bob"}, {}};
    Serve(options);
    std::promise<void> drained;  // no run of a study begins
    coordinator_->SetDrain(true, "", [&drained](const absl::StatusOr<int>&) { drained.set_value(); });
    drained.get_future().wait();
  }

  // Submits a study of alice with 1, 2, 4 and 8 ranks, of which all but the last have results: speedups of 1.9 for a doubling
  // in two blocks that differ by 10%, and epochs of 6,400 samples. Returns its resource name.
  std::string Measured(bool is_private = false) {
    v1::CreateStudyRequest create;
    *create.mutable_spec() = World::Spec({1, 2, 4, 8}, 2);
    if (is_private) create.mutable_spec()->set_visibility(v1::StudySpec::PRIVATE);
    v1::CreateStudyResponse created;
    const auto status =
        v1::StudyService::NewStub(Tcp())->CreateStudy(Context("alice").get(), create, &created);
    EXPECT_TRUE(status.ok()) << status.error_message();
    const int64_t id = ++studies_;
    EXPECT_EQ(created.study().name(), absl::StrCat("studies/", id));
    const auto cells = store_->ListCells(id).value();
    db::WriteBatch batch;
    std::vector<db::RunRow> runs = store_->ListRuns({id, {}, -1, 10}).value();
    for (db::RunRow& run : runs) {
      const auto cell = std::ranges::find(cells, run.cell_id, &db::CellRow::id);
      if (cell->ranks == 8) continue;
      run.state = db::RunState::kSucceeded;
      run.attempts = 1;
      batch.attempts.push_back(db::AnAttempt(run.id, run.id));
      batch.attempts.back().state = db::AttemptState::kSucceeded;
      const double throughput =
          kOneRank * std::pow(1.9, std::log2(cell->ranks)) * (run.repeat == 0 ? 1 : 1.1);
      batch.summaries.push_back(db::ASummary(run.id, run.id, throughput));
      batch.summaries.back().epoch_seconds = 6400 / throughput;
      batch.runs.push_back(run);
    }
    EXPECT_EQ(batch.runs.size(), 6u);
    const absl::Status committed = store_->Commit(batch);
    EXPECT_TRUE(committed.ok()) << committed;
    return created.study().name();
  }

  // Requires that a call is refused with `code`.
  static std::string Refused(const grpc::Status& status,
                             grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  }
  grpc::Status Advise(const v1::AdviseRanksRequest& request, v1::AdviseRanksResponse* response,
                      const std::string& user = "alice") {
    return v1::AnalysisService::NewStub(Tcp())->AdviseRanks(Context(user).get(), request, response);
  }
  v1::Advice Advised(const v1::AdviseRanksRequest& request) {
    v1::AdviseRanksResponse response;
    const auto status = Advise(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.study(), request.study());
    EXPECT_EQ(response.display_name(), "test");
    EXPECT_EQ(response.advice_size(), 1);
    return response.advice_size() == 1 ? response.advice(0) : v1::Advice();
  }
  grpc::Status Compare(const v1::CompareCellsRequest& request, v1::CompareCellsResponse* response,
                       const std::string& user = "alice") {
    return v1::AnalysisService::NewStub(Tcp())->CompareCells(Context(user).get(), request, response);
  }
  grpc::Status Predict(const v1::CreatePredictionsRequest& request, v1::CreatePredictionsResponse* response,
                       const std::string& user = "alice") {
    return v1::PredictionService::NewStub(Tcp())->CreatePredictions(Context(user).get(), request, response);
  }
  // Predicts the cell with 8 ranks of a study, and stores the prediction. Returns its name.
  std::string Predicted(const std::string& study) {
    v1::CreatePredictionsRequest request;
    request.set_study(study);
    v1::CreatePredictionsResponse response;
    const auto status = Predict(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.predictions_size(), 1);
    if (response.predictions_size() != 1) return "";
    EXPECT_EQ(response.predictions(0).ranks(), 8);
    EXPECT_EQ(response.predictions(0).state(), v1::Prediction::PENDING) << response.predictions(0).reason();
    return response.predictions(0).name();
  }
  grpc::Status ListAll(const v1::ListPredictionsRequest& request, v1::ListPredictionsResponse* response,
                       const std::string& user = "alice") {
    return v1::PredictionService::NewStub(Tcp())->ListPredictions(Context(user).get(), request, response);
  }
  std::vector<std::string> Listed(const v1::ListPredictionsRequest& request,
                                  const std::string& user = "alice",
                                  v1::ListPredictionsResponse* response = nullptr) {
    v1::ListPredictionsResponse own;
    if (response == nullptr) response = &own;
    const auto status = ListAll(request, response, user);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::string> names;
    for (const v1::Prediction& prediction : response->predictions()) names.push_back(prediction.name());
    return names;
  }

  int64_t studies_ = 0;
};

TEST_F(AnalysisServiceTest, ACurveIsComparedWithTheRunsOfItsReference) {
  v1::CreateStudyRequest create;
  *create.mutable_spec() = World::Spec({1}, 4);
  create.mutable_spec()->mutable_measure()->set_target_accuracy(0.9);
  v1::CreateStudyResponse created;
  const auto status = v1::StudyService::NewStub(Tcp())->CreateStudy(Context("alice").get(), create, &created);
  ASSERT_TRUE(status.ok()) << status.error_message();
  db::WriteBatch batch;
  std::vector<db::RunRow> runs = store_->ListRuns({1, {}, -1, 10}).value();
  ASSERT_EQ(runs.size(), 4u);
  for (db::RunRow& run : runs) {
    run.state = db::RunState::kSucceeded;
    run.attempts = 1;
    batch.attempts.push_back(db::AnAttempt(run.id, run.id));
    batch.attempts.back().state = db::AttemptState::kSucceeded;
    batch.summaries.push_back(db::ASummary(run.id, run.id, kOneRank));
    batch.summaries.back().time_to_accuracy = 10;
    batch.summaries.back().times.samples_to_accuracy = 1000;
    batch.runs.push_back(run);
  }
  const absl::Status committed = store_->Commit(batch);
  ASSERT_TRUE(committed.ok()) << committed;
  v1::GetCurveRequest request;
  request.set_study("studies/1");
  request.set_factors(true);
  for (const char* reference : {"", "studies/1"}) {
    request.set_reference(reference);
    v1::GetCurveResponse curve;
    ASSERT_TRUE(v1::ResultService::NewStub(Tcp())->GetCurve(Context("alice").get(), request, &curve).ok());
    ASSERT_EQ(curve.series_size(), 1);
    const v1::TimeToTarget& found = curve.series(0).points(0).time_to_target();
    EXPECT_EQ(found.samples(), 1000);
    EXPECT_EQ(found.has_reference_samples(), *reference != '\0');
    EXPECT_EQ(found.reference_samples(), *reference == '\0' ? 0 : 1000);
  }
}

TEST_F(AnalysisServiceTest, AdviceFollowsTheFieldsOfTheRequest) {
  v1::AdviseRanksRequest request;
  request.set_study(Measured());
  request.set_epochs(10);
  const v1::Advice plain = Advised(request);
  ASSERT_EQ(plain.sizes_size(), 3) << "8 ranks have no results";
  // 64,000 samples at 100 and 110 samples/s take 640 and 582 s.
  const double hours = 64'000 / kOneRank * (1 + 1 / 1.1) / 2 / 3600;
  EXPECT_NEAR(plain.sizes(0).hours().mean(), hours, 1e-9);
  EXPECT_NEAR(plain.sizes(2).cost().mean(), 4 * hours / (1.9 * 1.9), 1e-9) << "the price of a rank hour is 1";
  EXPECT_NEAR(plain.sizes(2).gain().mean(), 0.9, 1e-9);
  EXPECT_EQ(plain.recommended(), 4);

  request.set_epochs(20);
  request.set_rank_hour_price(3);
  const v1::Advice longer = Advised(request);
  EXPECT_NEAR(longer.sizes(0).hours().mean(), 2 * hours, 1e-9);
  EXPECT_NEAR(longer.sizes(2).cost().mean(), 3 * 4 * 2 * hours / (1.9 * 1.9), 1e-9);

  request.set_min_gain(0.95);
  EXPECT_EQ(Advised(request).recommended(), 1);
  // The interval of the hours of 4 ranks is above, that of 1 rank is below.
  request.set_deadline_hours(100 * hours);
  EXPECT_TRUE(Advised(request).sizes(0).in_time());
  request.set_deadline_hours(hours / 1000);
  const v1::Advice late = Advised(request);
  EXPECT_EQ(late.recommended(), 0);
  EXPECT_THAT(late.text(), HasSubstr("No measured world size meets the deadline"));
}

TEST_F(AnalysisServiceTest, AdviceOfImpossibleFieldsIsRefused) {
  const std::string study = Measured();
  const auto refused = [&](auto set) {
    v1::AdviseRanksRequest request;
    request.set_study(study);
    set(request);
    v1::AdviseRanksResponse response;
    return Refused(Advise(request, &response));
  };
  EXPECT_THAT(refused([](auto& r) { r.set_min_gain(1.5); }),
              HasSubstr("min_gain is 1.5; it must be from 0 to 1"));
  EXPECT_THAT(refused([](auto& r) { r.set_rank_hour_price(-1); }), HasSubstr("rank_hour_price is -1"));
  EXPECT_THAT(refused([](auto& r) { r.set_deadline_hours(std::nan("")); }),
              HasSubstr("deadline_hours is nan"));
  EXPECT_THAT(refused([](auto& r) { r.set_epochs(1e10); }), HasSubstr("epochs is 1e+10"));
}

TEST_F(AnalysisServiceTest, StudiesThatTheCallerMayNotSeeDoNotExist) {
  const std::string study = Measured(/*is_private=*/true);
  v1::AdviseRanksRequest advise;
  advise.set_study(study);
  v1::AdviseRanksResponse advice;
  EXPECT_TRUE(Advise(advise, &advice, "alice").ok());
  Refused(Advise(advise, &advice, "bob"), grpc::StatusCode::NOT_FOUND);
  v1::CompareCellsRequest compare;
  compare.add_studies(study);
  v1::CompareCellsResponse compared;
  EXPECT_TRUE(Compare(compare, &compared, "alice").ok());
  Refused(Compare(compare, &compared, "bob"), grpc::StatusCode::NOT_FOUND);
  v1::CreatePredictionsRequest predict;
  predict.set_study(study);
  predict.set_validate_only(true);
  v1::CreatePredictionsResponse predicted;
  EXPECT_TRUE(Predict(predict, &predicted, "alice").ok());
  Refused(Predict(predict, &predicted, "bob"), grpc::StatusCode::NOT_FOUND);
  v1::ListPredictionsRequest list;
  list.set_study(study);
  v1::ListPredictionsResponse listed;
  EXPECT_TRUE(ListAll(list, &listed, "alice").ok());
  Refused(ListAll(list, &listed, "bob"), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AnalysisServiceTest, TheNotesOnTheMeasurementsAreThoseOfTheCurve) {
  const std::string study = Measured(), other = Measured();
  std::vector<db::RunRow> runs = store_->ListRuns({1, {}, -1, 10}).value();
  const auto retried = std::ranges::find(runs, db::RunState::kSucceeded, &db::RunRow::state);
  ASSERT_NE(retried, runs.end());
  retried->attempts = 2;
  db::WriteBatch batch;
  batch.runs.push_back(*retried);
  ASSERT_TRUE(store_->Commit(batch).ok());

  v1::GetCurveRequest of_curve;
  of_curve.set_study(study);
  v1::GetCurveResponse curve;
  ASSERT_TRUE(v1::ResultService::NewStub(Tcp())->GetCurve(Context("alice").get(), of_curve, &curve).ok());
  ASSERT_EQ(curve.series_size(), 1);
  const v1::CurveSeries& series = curve.series(0);
  const auto expect_notes = [&](const v1::MeasuredSeries& measured) {
    EXPECT_EQ(measured.study(), study);
    EXPECT_EQ(measured.display_name(), "test");
    EXPECT_EQ(measured.fingerprint(), series.fingerprint());
    EXPECT_THAT(measured.notes(), ElementsAreArray(series.notes()));
    EXPECT_THAT(measured.notes(), Contains(HasSubstr("in the order of the study file")));
    ASSERT_EQ(measured.points_size(), series.points_size()) << "also the world size without results";
    std::vector<std::string> notes;
    for (int i = 0; i < measured.points_size(); ++i) {
      EXPECT_EQ(measured.points(i).ranks(), series.points(i).ranks());
      EXPECT_EQ(measured.points(i).n(), series.points(i).n());
      EXPECT_EQ(measured.points(i).asked(), 2);
      EXPECT_THAT(measured.points(i).notes(), ElementsAreArray(series.points(i).notes()));
      notes.insert(notes.end(), measured.points(i).notes().begin(), measured.points(i).notes().end());
    }
    EXPECT_THAT(notes, Contains("1 run succeeded only after a failed attempt"));
  };

  v1::AdviseRanksRequest advise;
  advise.set_study(study);
  v1::AdviseRanksResponse advice;
  ASSERT_TRUE(Advise(advise, &advice).ok());
  ASSERT_EQ(advice.measured_size(), 1);
  expect_notes(advice.measured(0));
  for (const char* axis : {"engine", "study"}) {
    v1::CompareCellsRequest compare;
    compare.set_axis(axis);
    compare.add_studies(study);
    compare.add_studies(other);
    v1::CompareCellsResponse compared;
    ASSERT_TRUE(Compare(compare, &compared).ok());
    ASSERT_EQ(compared.measured_size(), 2) << axis;
    expect_notes(compared.measured(0));
    EXPECT_EQ(compared.measured(1).study(), other);
  }
}

TEST_F(AnalysisServiceTest, StudiesWithOneNameAreNamedApart) {
  const std::string first = Measured(), second = Measured();
  v1::CompareCellsRequest request;
  request.add_studies(first);
  request.add_studies(second);
  request.set_axis("study");
  v1::CompareCellsResponse response;
  const auto status = Compare(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.studies(), ElementsAre(first, second));
  ASSERT_EQ(response.groups_size(), 3);
  const v1::ComparedPair& pair = response.groups(0).pairs(0);
  EXPECT_EQ(pair.first(), "test (studies/1)");
  EXPECT_EQ(pair.second(), "test (studies/2)");
  EXPECT_NEAR(pair.effect().mean(), 0, 1e-12);
}

TEST_F(AnalysisServiceTest, ImpossibleComparisonsAreRefused) {
  const std::string study = Measured();
  const auto refused = [&](int studies, auto set) {
    v1::CompareCellsRequest request;
    for (int i = 0; i < studies; ++i) request.add_studies(study);
    set(request);
    v1::CompareCellsResponse response;
    return Refused(Compare(request, &response));
  };
  EXPECT_THAT(refused(0, [](auto&) {}), HasSubstr("studies has 0 names; it must have 1 to 100"));
  EXPECT_THAT(refused(101, [](auto&) {}), HasSubstr("studies has 101 names"));
  EXPECT_THAT(refused(1, [](auto& r) { r.set_axis("study"); }), HasSubstr("name at least two"));
  EXPECT_THAT(refused(1, [](auto& r) { r.add_studies("last"); }),
              HasSubstr("studies/1 is named twice; name each study once"));
  EXPECT_THAT(refused(1, [](auto& r) { r.set_axis("ranks"); }), HasSubstr("scalelab advise"));
  EXPECT_THAT(refused(1, [](auto& r) { r.set_equivalent(2); }), HasSubstr("equivalent is 2"));
}

TEST_F(AnalysisServiceTest, ADryRunOfAPredictionStoresNothing) {
  v1::CreatePredictionsRequest request;
  request.set_study(Measured());
  request.set_validate_only(true);
  request.add_ranks(16);
  v1::CreatePredictionsResponse response;
  ASSERT_TRUE(Predict(request, &response).ok());
  ASSERT_EQ(response.predictions_size(), 1) << "also of a world size that the study does not have";
  EXPECT_EQ(response.predictions(0).name(), "");
  EXPECT_GT(response.predictions(0).predicted().mean(), 4 * kOneRank);
  EXPECT_THAT(Listed({}), IsEmpty());

  request.set_validate_only(false);
  ASSERT_TRUE(Predict(request, &response).ok());
  EXPECT_EQ(response.predictions(0).state(), v1::Prediction::REFUSED);
  EXPECT_THAT(response.predictions(0).reason(), HasSubstr("no such cell with 16 ranks"));
}

TEST_F(AnalysisServiceTest, PredictionsAreListedByPage) {
  std::vector<std::string> studies, made;
  for (int i = 0; i < 3; ++i) {
    studies.push_back(Measured());
    made.push_back(Predicted(studies.back()));
  }
  v1::ListPredictionsRequest request;
  request.set_page_size(2);
  v1::ListPredictionsResponse page;
  EXPECT_THAT(Listed(request, "alice", &page), ElementsAre(made[2], made[1])) << "newest first";
  EXPECT_EQ(page.summary().predictions(), 3) << "the summary is of all pages";
  request.set_page_token(page.next_page_token());
  EXPECT_THAT(Listed(request, "alice", &page), ElementsAre(made[0]));
  EXPECT_EQ(page.next_page_token(), "");

  v1::ListPredictionsRequest of_study;
  of_study.set_study(studies[1]);
  EXPECT_THAT(Listed(of_study, "alice", &page), ElementsAre(made[1]));
  EXPECT_EQ(page.summary().predictions(), 1);

  request.set_page_token("a page");
  EXPECT_THAT(Refused(ListAll(request, &page)), HasSubstr("page_token"));
}

TEST_F(AnalysisServiceTest, PredictionsOfPrivateStudiesAreListedForTheirOwner) {
  const std::string open = Predicted(Measured()), secret = Predicted(Measured(/*is_private=*/true));
  EXPECT_THAT(Listed({}, "alice"), UnorderedElementsAre(open, secret));
  v1::ListPredictionsResponse page;
  EXPECT_THAT(Listed({}, "bob", &page), ElementsAre(open));
  EXPECT_EQ(page.summary().predictions(), 1);
}

TEST_F(AnalysisServiceTest, ImpossiblePredictionsAreRefused) {
  const std::string study = Measured();
  const auto refused = [&](auto set) {
    v1::CreatePredictionsRequest request;
    request.set_study(study);
    set(request);
    v1::CreatePredictionsResponse response;
    return Refused(Predict(request, &response));
  };
  EXPECT_THAT(refused([](auto& r) { r.add_ranks(0); }), HasSubstr("ranks has the value 0"));
  EXPECT_THAT(refused([](auto& r) {
                for (int i = 0; i < 101; ++i) r.add_ranks(8);
              }),
              HasSubstr("at most 100 are allowed"));
  const auto measured = [](auto& r, int ranks, double bytes, double seconds) {
    auto* all_reduce = r.add_all_reduces();
    all_reduce->set_ranks(ranks);
    all_reduce->set_bytes(bytes);
    all_reduce->set_seconds(seconds);
  };
  EXPECT_THAT(refused([&](auto& r) { measured(r, 1, 4, 1e-6); }), HasSubstr("one of 1 ranks, 4 bytes"));
  EXPECT_THAT(refused([&](auto& r) { measured(r, 2, std::nan(""), 1); }), HasSubstr("nan bytes"));
  EXPECT_THAT(refused([&](auto& r) { measured(r, 2, 4, HUGE_VAL); }), HasSubstr("inf s"));
  EXPECT_THAT(refused([&](auto& r) {
                for (int i = 0; i < 10'001; ++i) measured(r, 2, 4, 1);
              }),
              HasSubstr("at most 10000 are allowed"));
  EXPECT_THAT(Listed({}), IsEmpty());
}

}  // namespace
}  // namespace scalelab::server
