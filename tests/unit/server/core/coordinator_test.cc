// The core thread with a real database and a scheduler that accepts everything.
#include "server/core/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "db/sqlite_store.h"
#include "server/core/accounting.h"
#include "server/core/reload.h"
#include "tests/unit/server/core/forwarding_store.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

class ObedientScheduler final : public Scheduler {
 public:
  std::string name() const override { return "obedient"; }
  Capacity capacity() const override { return {}; }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override {
    if (!submits++) submitted.set_value(request);
    while (hangs) absl::SleepFor(absl::Milliseconds(1));
    if (silent) return absl::UnavailableError("the submit timed out");
    if (refuses) return absl::InvalidArgumentError("no such partition");
    return "1";
  }
  std::string Script(const JobRequest&) const override { return ""; }
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override {
    if (away) return absl::UnavailableError("squeue timed out");
    std::vector<JobStatus> jobs;
    polls += tokens.size();
    const auto state = silent ? JobStatus::State::kUnknown : JobStatus::State::kRunning;
    for (const std::string& token : tokens) jobs.push_back({token, "1", state, ""});
    return jobs;
  }
  absl::StatusOr<ClusterView> View() override {
    ++views;
    return ClusterView{};
  }
  absl::Status Cancel(const std::vector<std::string>& tokens) override {
    cancels += tokens.size();
    return absl::OkStatus();
  }
  std::atomic<size_t> cancels = 0;  // jobs
  std::atomic<bool> away = false;
  std::atomic<bool> refuses = false;
  std::atomic<bool> hangs = false;  // whether Submit blocks
  std::atomic<int> views = 0;
  std::promise<JobRequest> submitted;  // the first
  std::atomic<int> submits = 0;
  std::atomic<bool> silent = false;  // whether it accepts no job and lists none
  std::atomic<size_t> polls = 0;     // tokens asked about
};

// Fails commits on demand.
class FragileStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status Commit(const db::WriteBatch& batch) override {
    if (gone) return absl::FailedPreconditionError("scalelab.db was deleted; restore a backup");
    return full ? absl::ResourceExhaustedError("the disk is full") : ForwardingStore::Commit(batch);
  }
  absl::StatusOr<db::Snapshot> LoadStudy(int64_t id) override {
    if (gone) return absl::FailedPreconditionError("scalelab.db was deleted; restore a backup");
    return unreadable ? absl::DataLossError("a damaged page") : ForwardingStore::LoadStudy(id);
  }
  std::atomic<bool> full = false, unreadable = false, gone = false;
};

class CoordinatorTest : public testing::Test {
 protected:
  CoordinatorTest() {
    std::string pattern = testing::TempDir() + "/coordinator-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    Open();
  }
  ~CoordinatorTest() override {
    Close();
    std::filesystem::remove_all(directory_);
  }
  void Open(bool scheduler_silent = false) {
    auto store = db::OpenSqliteStore({directory_ + "/test.db"});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::make_unique<FragileStore>(*std::move(store));
    scheduler_ = std::make_unique<ObedientScheduler>();
    scheduler_->silent = scheduler_silent;
    CoordinatorOptions options;
    options.runs_dir = "/runs";
    options.secret_for = [](const std::string& token) { return "secret of " + token; };
    options.new_token = [this] { return absl::StrCat("token-", directory_, "-", ++tokens_); };
    coordinator_ = std::make_unique<Coordinator>(std::move(options), *store_, *scheduler_);
    ASSERT_TRUE(coordinator_->Start().ok());
  }
  void Close() {
    coordinator_.reset();
    scheduler_.reset();
    store_.reset();
  }

  absl::StatusOr<int64_t> Submit(const v1::StudySpec& spec) {
    std::promise<absl::StatusOr<int64_t>> done;
    coordinator_->Submit(MakeNewStudy(spec, *ExpandStudy(spec), "ann", ""),
                         [&](absl::StatusOr<int64_t> id) { done.set_value(std::move(id)); });
    return done.get_future().get();
  }
  absl::StatusOr<v1::SynchronizeResponse> Sync(const std::string& token,
                                               v1::SynchronizeRequest request = {}) {
    request.set_node("n");
    request.set_instance("life");
    std::promise<absl::StatusOr<v1::SynchronizeResponse>> done;
    coordinator_->Synchronize(
        token, std::move(request),
        [&](absl::StatusOr<v1::SynchronizeResponse> response) { done.set_value(std::move(response)); });
    return done.get_future().get();
  }
  size_t Live() {
    std::promise<size_t> live;
    coordinator_->Read([&](const State* state) { live.set_value(state->studies.size()); });
    return live.get_future().get();
  }

  absl::Status View() {
    std::promise<absl::Status> done;
    coordinator_->View([&](absl::StatusOr<ClusterView> view) { done.set_value(view.status()); });
    return done.get_future().get();
  }
  SchedulerHealth Health() {
    std::promise<SchedulerHealth> health;
    coordinator_->Read([&](const State* state) { health.set_value(state->scheduler); });
    return health.get_future().get();
  }
  // Polls until the coordinator has recorded that the scheduler fails, or that it answers again.
  void PollUntil(bool away) {
    scheduler_->away = away;
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (Health().error.empty() == away && absl::Now() < deadline) coordinator_->PollSoon();
    ASSERT_EQ(Health().error.empty(), !away);
  }

  std::string directory_;
  int tokens_ = 0;
  std::unique_ptr<FragileStore> store_;
  std::unique_ptr<ObedientScheduler> scheduler_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(CoordinatorTest, WhatIsAcknowledgedIsInTheDatabase) {
  const auto id = Submit(World::Spec({1}));
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(store_->GetStudy(*id)->name, "test");
}

TEST_F(CoordinatorTest, TheJobGetsTheSecretOfItsToken) {
  ASSERT_TRUE(Submit(World::Spec({1})).ok());
  const JobRequest request = scheduler_->submitted.get_future().get();
  EXPECT_EQ(request.secret, "secret of " + request.token);
}

TEST_F(CoordinatorTest, WhatCouldNotBeMadeDurableDidNotHappen) {
  store_->full = true;
  const auto refused = Submit(World::Spec({1}));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("disk is full"));
  EXPECT_EQ(Live(), 0u);
  store_->full = false;
  EXPECT_TRUE(Submit(World::Spec({1})).ok());
  EXPECT_EQ(Live(), 1u);
}

TEST_F(CoordinatorTest, AnUnknownAllocationIsTurnedAway) {
  EXPECT_TRUE(absl::IsUnauthenticated(Sync("nobody").status()));
}

TEST_F(CoordinatorTest, ARestartGoesOnWithTheAttemptThatIsLive) {
  const auto id = Submit(World::Spec({1}));
  const std::string job = scheduler_->submitted.get_future().get().token;
  const auto before = Sync(job);
  ASSERT_TRUE(before.ok());
  ASSERT_EQ(before->attempts_size(), 1);
  Close();
  Open();
  EXPECT_EQ(Live(), 1u);
  v1::SynchronizeRequest running;
  running.set_generation(before->generation());
  auto* status = running.add_attempts();
  status->set_token(before->attempts(0).token());
  status->set_state(v1::SynchronizeRequest::AttemptStatus::RUNNING);
  const auto after = Sync(job, running);
  ASSERT_TRUE(after.ok()) << after.status();
  ASSERT_EQ(after->attempts_size(), 1);
  EXPECT_EQ(after->attempts(0).token(), before->attempts(0).token());
  db::RunFilter all;
  all.study_id = *id;
  EXPECT_EQ(store_->ListAttempts(store_->ListRuns(all)->front().id)->size(), 1u);
}

TEST_F(CoordinatorTest, AnIntentOfAnEarlierProcessIsPolledBeforeItIsSubmittedAgain) {
  scheduler_->silent = true;
  ASSERT_TRUE(Submit(World::Spec({1})).ok());
  const std::string token = scheduler_->submitted.get_future().get().token;
  Close();
  Open(/*scheduler_silent=*/true);
  EXPECT_EQ(scheduler_->submitted.get_future().get().token, token);
  EXPECT_GE(scheduler_->polls, 1u) << "the call of the other process may still be in flight";
}

TEST_F(CoordinatorTest, AWatcherGetsTheFinalStateAndThenNothing) {
  const auto id = Submit(World::Spec({1}));
  std::promise<void> final;
  coordinator_->Watch(
      *id,
      [&](const LiveStudy&, const State&, bool last) {
        if (last) final.set_value();
        return true;
      },
      [](absl::Status) { FAIL(); });
  std::promise<absl::Status> cancelled;
  coordinator_->CancelStudy(*id, [&](absl::Status s) { cancelled.set_value(s); });
  EXPECT_TRUE(cancelled.get_future().get().ok());
  final.get_future().get();
  EXPECT_EQ(Live(), 0u);
  EXPECT_EQ(store_->GetStudy(*id)->state, db::StudyState::kCancelled);
}

TEST_F(CoordinatorTest, StoppingAnswersTheCallsThatAreHeld) {
  ASSERT_TRUE(Submit(World::Spec({1})).ok());
  const std::string job = scheduler_->submitted.get_future().get().token;
  const auto first = Sync(job);
  v1::SynchronizeRequest request;
  request.set_node("n");
  request.set_instance("life");
  request.set_generation(first->generation());
  std::promise<absl::Status> held;
  coordinator_->Synchronize(job, request,
                            [&](absl::StatusOr<v1::SynchronizeResponse> r) { held.set_value(r.status()); });
  coordinator_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(held.get_future().get()));
}

TEST_F(CoordinatorTest, ARequestIsRefusedWhileTooManyWaitForTheCoreThread) {
  std::promise<void> blocked, release;
  coordinator_->Read([&](const State*) {
    blocked.set_value();
    release.get_future().wait();
  });
  blocked.get_future().wait();
  std::atomic<int> answered = 0;
  for (int i = 0; i < 10'000; ++i)
    coordinator_->Read([&](const State* state) { answered += state != nullptr ? 1 : 0; });
  absl::Status refused;
  coordinator_->CancelStudy(1, [&](absl::Status status) { refused = std::move(status); });
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  release.set_value();
  while (answered < 10'000) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(Submit(World::Spec({1})).ok()) << "the queue is empty again";
}

TEST_F(CoordinatorTest, AStudyIsRefusedWhileTooManyRunsWaitForTheCoreThread) {
  const v1::StudySpec spec = World::Spec({1}, 100'000);
  std::promise<void> blocked, release;
  coordinator_->Read([&](const State*) {
    blocked.set_value();
    release.get_future().wait();
  });
  blocked.get_future().wait();
  std::atomic<int> accepted = 0;
  absl::Status refused;
  for (int i = 0; i < 3; ++i) {
    coordinator_->Submit(MakeNewStudy(spec, *ExpandStudy(spec), "ann", ""),
                         [&](const absl::StatusOr<int64_t>& id) { accepted += id.ok() ? 1 : 0; });
  }
  const v1::StudySpec small = World::Spec({1});
  coordinator_->Submit(MakeNewStudy(small, *ExpandStudy(small), "ann", ""),
                       [&](const absl::StatusOr<int64_t>& id) { refused = id.status(); });
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  release.set_value();
  while (accepted < 3) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(Submit(small).ok()) << "the queue is empty again";
}

TEST_F(CoordinatorTest, ManyWhoLookAtTheClusterAreOneQuestionToTheScheduler) {
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(View().ok());
  EXPECT_EQ(scheduler_->views, 1);
}

TEST_F(CoordinatorTest, NobodyWaitsForASchedulerThatIsKnownToBeAway) {
  ASSERT_TRUE(Submit(World::Spec({1})).ok());
  PollUntil(/*away=*/true);
  const SchedulerHealth health = Health();
  EXPECT_EQ(health.error, "squeue timed out");
  EXPECT_NE(health.since, 0);
  EXPECT_GT(health.next_ask, health.since);
  const absl::Status view = View();
  EXPECT_TRUE(absl::IsUnavailable(view)) << view;
  EXPECT_EQ(view.message(), "squeue timed out");
  EXPECT_EQ(scheduler_->views, 0);
  EXPECT_EQ(Health().since, health.since) << "the time of the first failed call counts";
  PollUntil(/*away=*/false);
  EXPECT_EQ(Health().since, 0);
  EXPECT_TRUE(View().ok());
}

TEST_F(CoordinatorTest, StopsInBoundedTimeWhileACallOfTheSchedulerHangs) {
  scheduler_->hangs = true;
  ASSERT_TRUE(Submit(World::Spec({1})).ok());
  scheduler_->submitted.get_future().wait();
  EXPECT_FALSE(coordinator_->Stop(absl::Milliseconds(50)));
  EXPECT_FALSE(coordinator_->Stop()) << "the call is still in flight";
  scheduler_->hangs = false;
  while (!coordinator_->Stop()) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(CoordinatorTest, AStoppedCoordinatorRefusesAView) {
  coordinator_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(View()));
}

// The coordinator without threads, with clocks that the test sets.
class SteppedTest : public CoordinatorTest {
 protected:
  class ManualClock final : public Clock {
   public:
    absl::Time Wall() const override { return wall; }
    absl::Duration Steady() const override { return steady; }
    absl::Time wall = absl::FromUnixSeconds(1'800'000'000);
    absl::Duration steady = absl::Hours(1);
  };

  // Starts, or restarts after a crash.
  void Restart() {
    Close();
    auto store = db::OpenSqliteStore({directory_ + "/test.db"});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::make_unique<FragileStore>(*std::move(store));
    scheduler_ = std::make_unique<ObedientScheduler>();
    CoordinatorOptions options;
    options.runs_dir = "/runs";
    options.clock = &clock_;
    options.worker_timeout = absl::Seconds(30);
    options.min_poll_interval = absl::Seconds(1);
    options.secret_for = [](const std::string&) { return ""; };
    options.new_token = [this] { return absl::StrCat("token-", ++tokens_); };
    coordinator_ = std::make_unique<Coordinator>(std::move(options), *store_, *scheduler_);
    ASSERT_TRUE(coordinator_->StartWithoutThreads().ok());
    Steps();
  }
  void Steps() {
    do coordinator_->Step();
    while (coordinator_->StepScheduler());
  }
  // Lets time pass, and executes each step when it is due.
  void Pass(absl::Duration time) {
    for (const absl::Duration end = clock_.steady + time; clock_.steady < end;) {
      const absl::Duration next =
          std::min(std::max(coordinator_->NextStep(), clock_.steady + absl::Milliseconds(1)), end);
      clock_.wall += next - clock_.steady;
      clock_.steady = next;
      Steps();
    }
  }
  int64_t SubmitStudy(const v1::StudySpec& spec) {
    absl::StatusOr<int64_t> result;
    coordinator_->Submit(MakeNewStudy(spec, *ExpandStudy(spec), "ann", ""),
                         [&](absl::StatusOr<int64_t> id) { result = std::move(id); });
    Steps();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(0);
  }
  template <typename T>
  T Look(const std::function<T(const State&)>& look) {
    std::optional<T> seen;
    coordinator_->Read([&](const State* state) { seen = look(*state); });
    Steps();
    return *seen;
  }

  ManualClock clock_;
};

TEST_F(SteppedTest, AClockThatIsSetBackStopsNothing) {
  Restart();
  SubmitStudy(World::Spec({1}));
  Pass(absl::Seconds(5));
  clock_.wall -= absl::Hours(5);
  const size_t polls = scheduler_->polls;
  Pass(absl::Minutes(2));
  EXPECT_GE(scheduler_->polls, polls + 3);
}

TEST_F(SteppedTest, AClockThatIsSetForwardsEndsNoAllocation) {
  Restart();
  SubmitStudy(World::Spec({1}));
  Pass(absl::Seconds(20));
  clock_.wall += absl::Hours(5);
  Pass(absl::Seconds(5));
  EXPECT_EQ(scheduler_->cancels, 0u);
  Pass(absl::Minutes(1));  // no worker has reported
  EXPECT_GT(scheduler_->cancels, 0u);
}

TEST_F(SteppedTest, PollsKeepTheirMinimumDistance) {
  Restart();
  SubmitStudy(World::Spec({1}));
  const size_t polls = scheduler_->polls;
  for (int i = 0; i < 1000; ++i) {
    coordinator_->PollSoon();
    Pass(absl::Milliseconds(10));
  }
  EXPECT_LE(scheduler_->polls, polls + 11);
  EXPECT_GE(scheduler_->polls, polls + 8);
}

TEST_F(SteppedTest, AnAllocationHasTheSameShapeAfterARestart) {
  v1::StudySpec spec = World::Spec({4, 2});
  auto* cores = spec.add_matrix();
  cores->set_key("cpus_per_rank");
  for (const int n : {1, 4}) cores->add_values()->set_number_value(n);
  Restart();
  const int64_t id = SubmitStudy(spec);
  const std::function<std::vector<int>(const State&)> shape = [&](const State& state) {
    const AllocationShape& s = state.study(id)->shapes[0];
    return std::vector<int>{s.nodes, s.ranks_per_node, s.cpus_per_rank, s.gpus_per_rank};
  };
  const std::vector<int> before = Look(shape);
  EXPECT_EQ(before[2], 4);
  Restart();
  EXPECT_EQ(Look(shape), before);
}

TEST_F(SteppedTest, RunsWithTheirOwnAllocationsGetAllOfThemAfterARestart) {
  v1::StudySpec spec = World::Spec({1}, 8);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  Restart();
  SubmitStudy(spec);
  Restart();
  Pass(absl::Seconds(60));
  const std::function<size_t(const State&)> allocations = [](const State& state) {
    return state.allocations.size();
  };
  EXPECT_EQ(Look(allocations), 8u);
}

TEST_F(SteppedTest, AStudyWithAllocationsForItsRunsKeepsItsLimitAfterARestart) {
  v1::StudySpec spec = World::Spec({1}, 12);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  spec.mutable_limits()->set_concurrent_allocations(3);
  Restart();
  const int64_t id = SubmitStudy(spec);
  Pass(absl::Seconds(5));
  v1::SynchronizeRequest request;
  request.set_node("n");
  request.set_instance("life");
  absl::StatusOr<v1::SynchronizeResponse> desired;
  const auto synchronize = [&](const std::string& token, const v1::SynchronizeRequest& sent) {
    coordinator_->Synchronize(token, sent,
                              [&](absl::StatusOr<v1::SynchronizeResponse> answer) { desired = answer; });
    Pass(absl::Seconds(1));
    ASSERT_TRUE(desired.ok()) << desired.status();
  };
  const auto tokens = Look<std::vector<std::string>>([&](const State& state) {
    std::vector<std::string> found;
    for (const int64_t allocation : state.study(id)->allocations)
      found.push_back(state.allocation(allocation)->row.token);
    return found;
  });
  ASSERT_EQ(tokens.size(), 3u);
  for (const std::string& token : tokens) synchronize(token, request);
  // The last run ends, and its allocation is released. The job has not ended yet, and another one is submitted.
  ASSERT_EQ(desired->attempts_size(), 1);
  v1::SynchronizeRequest ended = request;
  auto* status = ended.add_attempts();
  status->set_token(desired->attempts(0).token());
  status->set_state(v1::SynchronizeRequest::AttemptStatus::ENDED);
  status->set_exit_status(1);
  synchronize(tokens.back(), ended);
  EXPECT_TRUE(desired->terminate());
  const auto expect = [&](const State& state) {
    ExpectCounted(state);
    EXPECT_EQ(state.study(id)->allocations.size(), 4u);
    EXPECT_EQ(state.study(id)->allocations.serving(), 3u);
    EXPECT_EQ(state.study(id)->allocations.holding(), 3u);
    EXPECT_EQ(state.study(id)->unallocated.size(), 8u);
    return 0;
  };
  Pass(absl::Seconds(2));
  Look<int>(expect);
  Restart();
  Look<int>(expect);
  Pass(absl::Seconds(2));
  Look<int>(expect);
  store_->full = true;  // a failed commit reloads the study
  coordinator_->CancelStudy(id, [](absl::Status s) { EXPECT_FALSE(s.ok()); });
  Steps();
  store_->full = false;
  Look<int>(expect);
}

TEST_F(SteppedTest, AllocationsKeepTheirBlocksAndTheirNumberAfterARestart) {
  v1::StudySpec spec = World::Spec({1, 2}, 4);
  spec.mutable_limits()->set_concurrent_allocations(2);
  Restart();
  SubmitStudy(spec);
  Pass(absl::Seconds(2));
  const std::function<std::map<int64_t, std::string>(const State&)> tokens = [](const State& state) {
    std::map<int64_t, std::string> found;
    for (const auto& [id, allocation] : state.allocations) found[id] = allocation->row.token;
    return found;
  };
  const std::map<int64_t, std::string> jobs = Look(tokens);
  ASSERT_EQ(jobs.size(), 2u);
  v1::SynchronizeRequest request;
  request.set_node("n");
  request.set_instance("life");
  for (const auto& [id, token] : jobs) {
    coordinator_->Synchronize(token, request, [](absl::StatusOr<v1::SynchronizeResponse>) {});
    Pass(absl::Seconds(1));
  }
  const std::function<std::map<int64_t, BlockPart>(const State&)> parts = [](const State& state) {
    std::map<int64_t, BlockPart> found;
    for (const auto& [id, allocation] : state.allocations) found[id] = allocation->part.value();
    return found;
  };
  const std::map<int64_t, BlockPart> before = Look(parts);
  EXPECT_THAT(before,
              testing::ElementsAre(testing::Pair(1, BlockPart{0, 0}), testing::Pair(2, BlockPart{1, 0})));
  Restart();
  Pass(absl::Seconds(5));
  EXPECT_EQ(Look(parts), before);
  EXPECT_EQ(Look(tokens), jobs) << "no allocation is added";
}

TEST_F(SteppedTest, AJobThatAnEarlierProcessMayHaveSubmittedIsPolledFirst) {
  Restart();
  scheduler_->silent = true;  // the answer to the submit is lost
  SubmitStudy(World::Spec({1}));
  EXPECT_GT(scheduler_->submits, 0);
  Restart();  // the scheduler has the job
  Pass(absl::Seconds(20));
  EXPECT_EQ(scheduler_->submits, 0);
  EXPECT_GT(scheduler_->polls, 0u);
}

TEST_F(SteppedTest, ACancelAndTheNumberOfAttemptsSurviveARestart) {
  Restart();
  v1::StudySpec spec = World::Spec({1}, 2);
  spec.mutable_retry()->set_max(5);
  const int64_t id = SubmitStudy(spec);
  Pass(absl::Seconds(2));
  const std::string token =
      Look<std::string>([](const State& s) { return s.allocations.begin()->second->row.token; });
  v1::SynchronizeRequest request;
  request.set_node("n");
  request.set_instance("life");
  coordinator_->Synchronize(token, request, [](absl::StatusOr<v1::SynchronizeResponse>) {});
  Steps();
  ASSERT_EQ(Look<size_t>([](const State& s) { return s.attempts.size(); }), 1u);
  coordinator_->CancelStudy(id, [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
  Steps();
  Restart();
  Look<int>([&](const State& state) {
    EXPECT_TRUE(state.study(id)->row.cancel_requested);
    EXPECT_EQ(state.study(id)->runs[0].attempts, 1);
    EXPECT_EQ(state.attempts.begin()->second->row.state, db::AttemptState::kStopping);
    return 0;
  });
}

TEST_F(SteppedTest, ChargesAndServedAttemptsSurviveARestart) {
  Restart();
  SubmitStudy(World::Spec({4}, 2));
  Pass(absl::Seconds(2));
  const std::function<LiveAllocation(const State&)> allocation = [](const State& state) {
    return *state.allocations.begin()->second;
  };
  const std::string token = Look(allocation).row.token;
  const std::function<double(const State&)> usage = [&](const State& state) {
    return CurrentUse(state, absl::ToUnixMicros(clock_.wall)).Share("ann");
  };
  v1::SynchronizeRequest request;
  request.set_node("n");
  request.set_instance("life");
  for (int i = 0; i < 10; ++i) {
    coordinator_->Synchronize(token, request, [](absl::StatusOr<v1::SynchronizeResponse>) {});
    Pass(absl::Seconds(10));
  }
  EXPECT_EQ(Look(allocation).served, 1);
  v1::SynchronizeRequest ended = request;
  auto* status = ended.add_attempts();
  status->set_token(
      Look<std::string>([](const State& state) { return state.attempts.begin()->second->row.token; }));
  status->set_state(v1::SynchronizeRequest::AttemptStatus::ENDED);
  status->set_exit_status(1);
  coordinator_->Synchronize(token, ended, [](absl::StatusOr<v1::SynchronizeResponse>) {});
  Steps();
  const double used = Look(usage);
  EXPECT_NEAR(used, 100, 5) << "node-seconds";
  EXPECT_EQ(Look(allocation).served, 2) << "the failed run, and the next one";
  Restart();
  Pass(absl::Seconds(2));
  EXPECT_NEAR(Look(usage), used, 7.5) << "of an allocation that is held";
  EXPECT_EQ(Look(allocation).served, 2);
}

TEST_F(SteppedTest, AFailedCommitDoesNotForgetWhichWorkerHasAnAttempt) {
  Restart();
  const int64_t id = SubmitStudy(World::Spec({1}));
  Pass(absl::Seconds(2));
  const std::string token =
      Look<std::string>([](const State& s) { return s.allocations.begin()->second->row.token; });
  v1::SynchronizeRequest request;
  request.set_node("n");
  request.set_instance("life");
  const v1::SynchronizeRequest early = request;
  const auto synchronize = [&](const v1::SynchronizeRequest& sent) {
    coordinator_->Synchronize(token, sent, [](absl::StatusOr<v1::SynchronizeResponse>) {});
    Steps();
  };
  synchronize(request);
  const auto attempt = [](const State& s) {
    return s.attempts.empty() ? "" : s.attempts.begin()->second->row.token;
  };
  const std::string first = Look<std::string>(attempt);
  auto* status = request.add_attempts();
  status->set_token(first);
  status->set_state(v1::SynchronizeRequest::AttemptStatus::RUNNING);
  synchronize(request);
  store_->full = true;
  coordinator_->Submit(MakeNewStudy(World::Spec({1}), *ExpandStudy(World::Spec({1})), "ann", ""),
                       [](absl::StatusOr<int64_t> result) { EXPECT_FALSE(result.ok()); });
  Steps();
  store_->full = false;
  synchronize(early);  // a duplicate of a report from before the attempt
  EXPECT_EQ(Look<std::string>(attempt), first);
  EXPECT_EQ(store_->GetStudy(id)->state, db::StudyState::kRunning);
}

TEST_F(SteppedTest, AFinalStudyIsRetried) {
  Restart();
  scheduler_->refuses = true;
  const int64_t id = SubmitStudy(World::Spec({1}, 3));
  Pass(absl::Seconds(2));
  ASSERT_EQ(store_->GetStudy(id)->state, db::StudyState::kFailed);
  ASSERT_EQ(Look<bool>([&](const State& state) { return state.study(id) == nullptr; }), true);
  scheduler_->refuses = false;
  const std::function<int64_t(const State&)> changes = [](const State& state) { return state.final_changes; };
  const int64_t before = Look(changes);
  auto study = LoadFinalStudy(*store_, id);
  auto stale = LoadFinalStudy(*store_, id);
  ASSERT_TRUE(study.ok() && stale.ok()) << study.status();
  absl::Status first, second;
  coordinator_->Retry(id, 0, *std::move(study), before, [&](absl::Status s) { first = s; });
  Steps();
  EXPECT_TRUE(first.ok()) << first;
  EXPECT_EQ(store_->GetStudy(id)->state, db::StudyState::kQueued);
  Pass(absl::Seconds(2));
  EXPECT_EQ(Look<size_t>([](const State& state) { return state.allocations.size(); }), 1u);
  coordinator_->Retry(id, 0, *std::move(stale), before, [&](absl::Status s) { second = s; });
  Steps();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition) << "no run has failed since";
}

// Positions are indexes into the runs of the study.
TEST_F(SteppedTest, AFinalStudyWithAPositionThatIsNoIndexIsNotLoaded) {
  Restart();
  scheduler_->refuses = true;
  const int64_t id = SubmitStudy(World::Spec({1}, 3));
  Pass(absl::Seconds(2));
  ASSERT_EQ(store_->GetStudy(id)->state, db::StudyState::kFailed);
  ASSERT_TRUE(LoadFinalStudy(*store_, id).ok());
  db::WriteBatch batch;
  batch.runs = {store_->ListRuns({id, {}, -1, 1}).value().at(0)};
  for (const int position : {-1, 3, std::numeric_limits<int>::max()}) {
    batch.runs[0].position = position;
    ASSERT_TRUE(store_->Commit(batch).ok());
    EXPECT_EQ(LoadFinalStudy(*store_, id).status().code(), absl::StatusCode::kDataLoss) << position;
  }
}

TEST_F(SteppedTest, AFailedCommitReloadsOnlyTheStudiesThatItChanged) {
  Restart();
  const int64_t other = SubmitStudy(World::Spec({1}));
  const int64_t changed = SubmitStudy(World::Spec({1}));
  Pass(absl::Seconds(2));
  const auto study = [&](int64_t id) {
    return Look<const LiveStudy*>([id](const State& state) { return state.study(id); });
  };
  const LiveStudy* before = study(other);
  const auto pending = Look<std::map<PendingQueue, int>>([](const State& state) { return state.pending; });
  const std::string token = Look<std::string>([&](const State& state) {
    return state.allocation(*state.study(changed)->allocations.begin())->row.token;
  });
  store_->full = true;
  absl::Status cancelled;
  coordinator_->CancelStudy(changed, [&](absl::Status s) { cancelled = s; });
  Steps();
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kResourceExhausted);
  store_->full = false;
  EXPECT_EQ(study(other), before);
  EXPECT_FALSE(study(changed)->row.cancel_requested);
  EXPECT_EQ(study(changed)->queued.size(), 1u);
  EXPECT_EQ((Look<std::map<PendingQueue, int>>([](const State& state) { return state.pending; })), pending);
  v1::SynchronizeRequest request;
  request.set_node("n");
  request.set_instance("life");
  absl::StatusOr<v1::SynchronizeResponse> desired;
  coordinator_->Synchronize(token, request, [&](absl::StatusOr<v1::SynchronizeResponse> r) { desired = r; });
  Steps();
  ASSERT_TRUE(desired.ok()) << desired.status();
  EXPECT_EQ(desired->attempts_size(), 1) << "the study goes on";
}

TEST_F(SteppedTest, ADeletedDatabaseIsAFinalErrorForClients) {
  Restart();
  const int64_t id = SubmitStudy(World::Spec({1}));
  Pass(absl::Seconds(2));
  store_->gone = true;
  absl::Status first, second;
  coordinator_->CancelStudy(id, [&](absl::Status s) { first = s; });
  Steps();
  coordinator_->CancelStudy(id, [&](absl::Status s) { second = s; });
  Steps();
  for (const absl::Status& status : {first, second}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("was deleted; restore a backup"));
  }
}

TEST_F(SteppedTest, ADatabaseThatCannotBeReadAfterAFailedCommitStopsNothingForGood) {
  Restart();
  const int64_t id = SubmitStudy(World::Spec({1}));
  Pass(absl::Seconds(2));
  store_->full = store_->unreadable = true;
  absl::Status cancelled, refused;
  coordinator_->CancelStudy(id, [&](absl::Status s) { cancelled = s; });
  Steps();
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kResourceExhausted);
  coordinator_->CancelStudy(id, [&](absl::Status s) { refused = s; });
  Pass(absl::Seconds(30));
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << "waiting does not repair the database";
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("a damaged page"));
  store_->full = store_->unreadable = false;
  Pass(absl::Seconds(2));
  EXPECT_EQ(Look<size_t>([&](const State& state) { return state.study(id)->queued.size(); }), 1u);
  const size_t polls = scheduler_->polls;
  Pass(absl::Minutes(2));
  EXPECT_GT(scheduler_->polls, polls);
}

}  // namespace
}  // namespace scalelab::server
