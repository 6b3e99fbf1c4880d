// Tests studies whose number of blocks depends on their results, from the submission to the last run, with a
// real coordinator and database, and one worker that reports throughputs.
#include <future>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "server/core/coordinator.h"
#include "server/core/submission.h"
#include "server/repeats/assessor.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::server {
namespace {

// Starts every job at once.
class EagerScheduler final : public Scheduler {
 public:
  std::string name() const override { return "eager"; }
  Capacity capacity() const override { return {}; }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override {
    absl::MutexLock lock(&mutex_);
    token_ = request.token;
    return "1";
  }
  std::string Script(const JobRequest&) const override { return ""; }
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override {
    std::vector<JobStatus> jobs;
    for (const std::string& token : tokens) jobs.push_back({token, "1", JobStatus::State::kRunning, ""});
    return jobs;
  }
  absl::StatusOr<ClusterView> View() override { return ClusterView{}; }
  absl::Status Cancel(const std::vector<std::string>&) override { return absl::OkStatus(); }
  // Returns the token of the last job; empty before the first one.
  std::string token() const {
    absl::MutexLock lock(&mutex_);
    return token_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

class Repeats : public ::testing::Test {
 protected:
  Repeats() { Open(); }
  ~Repeats() override { Close(); }
  void Open() {
    store_ = db::OpenSqliteStore({directory_.path() + "/scalelab.db", false}).value();
    assessor_ = std::make_unique<Assessor>(*store_);
    CoordinatorOptions options;
    options.runs_dir = "/runs";
    options.secret_for = [](const std::string& token) { return token; };
    options.new_token = [this] { return absl::StrCat("token-", ++tokens_); };
    options.assess = [this](const AssessRequest& request, Assessor::Done done) {
      assessor_->Assess(request, std::move(done));
    };
    coordinator_ = std::make_unique<Coordinator>(std::move(options), *store_, scheduler_);
    ASSERT_TRUE(coordinator_->Start().ok());
  }
  void Close() {
    coordinator_->Stop();
    assessor_->Stop(absl::InfiniteDuration());
    coordinator_.reset();
    assessor_.reset();
    store_.reset();
  }

  // Two to five blocks of 1 and 2 ranks, until the speedup is known to 2%.
  int64_t Submit() {
    v1::StudySpec spec;
    spec.set_study("adaptive");
    (*spec.mutable_fixed()->mutable_fields())["model"].set_string_value("resnet20");
    (*spec.mutable_fixed()->mutable_fields())["dataset"].set_string_value("synthetic");
    v1::Axis& ranks = *spec.add_matrix();
    ranks.set_key("ranks");
    for (const int r : {1, 2}) ranks.add_values()->set_number_value(r);
    spec.mutable_adaptive_repeats()->set_min(3);
    spec.mutable_adaptive_repeats()->set_max(5);
    spec.mutable_adaptive_repeats()->set_half_width(0.02);
    std::promise<absl::StatusOr<int64_t>> done;
    coordinator_->Submit(MakeNewStudy(spec, *ExpandStudy(spec), "ann", ""),
                         [&](absl::StatusOr<int64_t> id) { done.set_value(std::move(id)); });
    return done.get_future().get().value();
  }
  v1::SynchronizeResponse Sync(v1::SynchronizeRequest request = {}) {
    request.set_node("n");
    request.set_instance("life");
    std::promise<absl::StatusOr<v1::SynchronizeResponse>> done;
    coordinator_->Synchronize(
        scheduler_.token(), std::move(request),
        [&](absl::StatusOr<v1::SynchronizeResponse> r) { done.set_value(std::move(r)); });
    return done.get_future().get().value_or(v1::SynchronizeResponse());
  }
  // Ends the attempt with this throughput.
  void Finish(const v1::SynchronizeResponse::DesiredAttempt& attempt, double throughput) {
    std::vector<ParsedBatch> batches;
    for (int rank = 0; rank < attempt.spec().ranks(); ++rank) {
      ParsedBatch& batch = batches.emplace_back();
      batch.token = attempt.token();
      batch.append.rank = rank;
      batch.append.end_position = 10;
      batch.append.end_line = 1;
      batch.append.finished = true;
      batch.append.parameter_hash = "h";
      batch.finish_metrics = {{"run/throughput", throughput}};
    }
    std::promise<bool> done;
    coordinator_->Report(scheduler_.token(), std::move(batches),
                         [&](const auto& r) { done.set_value(r.ok()); });
    ASSERT_TRUE(done.get_future().get());
    v1::SynchronizeRequest request;
    v1::SynchronizeRequest::AttemptStatus& status = *request.add_attempts();
    status.set_token(attempt.token());
    status.set_state(v1::SynchronizeRequest::AttemptStatus::ENDED);
    Sync(std::move(request));
  }
  // Executes at most `runs` runs. `speedups` has the speedup of each block.
  int Execute(int64_t id, int runs, const std::vector<double>& speedups) {
    int done = 0;
    const absl::Time limit = absl::Now() + absl::Seconds(20);
    while (done < runs && absl::Now() < limit && !IsFinal(store_->GetStudyHead(id)->state)) {
      const v1::SynchronizeResponse desired = scheduler_.token().empty() ? v1::SynchronizeResponse() : Sync();
      if (desired.attempts_size() == 0) {
        absl::SleepFor(absl::Milliseconds(2));
        continue;
      }
      const auto& attempt = desired.attempts(0);
      const int ranks = attempt.spec().ranks();
      const size_t block = begun_[ranks]++;
      Finish(attempt, ranks == 1 ? 100 : 100 * speedups.at(block));
      ++done;
    }
    return done;
  }
  std::vector<int64_t> Counts(int64_t id) { return store_->CountRuns({id}).value().front(); }

  db::TemporaryDirectory directory_;
  int tokens_ = 0;
  std::map<int, size_t> begun_;  // blocks that have begun, by ranks
  EagerScheduler scheduler_;
  std::unique_ptr<db::Store> store_;
  std::unique_ptr<Assessor> assessor_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(Repeats, PreciseResultsEndTheStudyEarly) {
  const int64_t id = Submit();
  EXPECT_EQ(Execute(id, 100, {1.90, 1.92, 1.91}), 6);
  EXPECT_EQ(store_->GetStudyHead(id)->state, db::StudyState::kSucceeded);
  EXPECT_EQ(Counts(id)[static_cast<size_t>(db::RunState::kSucceeded)], 6);
  EXPECT_EQ(Counts(id)[static_cast<size_t>(db::RunState::kSkipped)], 4);
  db::RunFilter skipped{id, db::RunState::kSkipped};
  EXPECT_THAT(store_->ListRuns(skipped).value().front().message,
              ::testing::HasSubstr("not needed: after 3 blocks"));
}

TEST_F(Repeats, NoisyResultsRunAllBlocks) {
  const int64_t id = Submit();
  EXPECT_EQ(Execute(id, 100, {1.7, 1.9, 1.8, 2.0, 1.6}), 10);
  EXPECT_EQ(store_->GetStudyHead(id)->state, db::StudyState::kSucceeded);
  EXPECT_EQ(Counts(id)[static_cast<size_t>(db::RunState::kSkipped)], 0);
}

TEST_F(Repeats, ARestartChangesNoDecision) {
  const std::vector<double> speedups = {1.88, 1.92, 1.91, 1.90};
  const int64_t id = Submit();
  ASSERT_EQ(Execute(id, 4, speedups), 4);
  Close();
  Open();
  ASSERT_EQ(Execute(id, 2, speedups), 2) << "three blocks";
  Close();  // maybe before the answer to the assessment
  Open();
  EXPECT_EQ(Execute(id, 100, speedups), 2) << "three blocks are not precise enough, four are";
  EXPECT_EQ(Counts(id)[static_cast<size_t>(db::RunState::kSkipped)], 2);
}

}  // namespace
}  // namespace scalelab::server
