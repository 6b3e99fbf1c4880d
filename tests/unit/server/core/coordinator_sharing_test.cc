// Fair share with a real database: the order of three users' studies, computed by hand, over a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "db/sqlite_store.h"
#include "server/core/accounting.h"
#include "server/core/coordinator.h"
#include "server/core/explain.h"
#include "tests/unit/server/core/forwarding_store.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ManualClock final : public Clock {
 public:
  absl::Time Wall() const override {
    return absl::FromUnixSeconds(1'800'000'000) + since_start + wall_offset;
  }
  absl::Duration Steady() const override { return since_start; }
  absl::Duration since_start = absl::Hours(1), wall_offset;
};

// A scheduler whose jobs start and end when a test calls it.
class ScriptedScheduler final : public Scheduler {
 public:
  std::string name() const override { return "scripted"; }
  Capacity capacity() const override { return {}; }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override {
    jobs.try_emplace(request.token, JobStatus::State::kPending);
    submitted.push_back(request.token);
    return request.token;
  }
  std::string Script(const JobRequest&) const override { return ""; }
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override {
    ++polls;
    std::vector<JobStatus> answers;
    for (const std::string& token : tokens) {
      const auto job = jobs.find(token);
      answers.push_back({token, token, job == jobs.end() ? JobStatus::State::kUnknown : job->second, ""});
    }
    return answers;
  }
  absl::StatusOr<ClusterView> View() override { return ClusterView(); }
  absl::Status Cancel(const std::vector<std::string>& tokens) override {
    ++cancels;
    for (const std::string& token : tokens) jobs[token] = JobStatus::State::kCancelled;
    return absl::OkStatus();
  }
  int cancels = 0, polls = 0;  // calls
  std::map<std::string, JobStatus::State> jobs;
  std::vector<std::string> submitted;
};

class FullStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status Commit(const db::WriteBatch& batch) override {
    return full ? absl::ResourceExhaustedError("the disk is full") : ForwardingStore::Commit(batch);
  }
  bool full = false;
};

class CoordinatorSharing : public testing::Test {
 protected:
  CoordinatorSharing() {
    std::string pattern = testing::TempDir() + "/sharing-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    policy_.fair_share.half_life = absl::Hours(1);
    policy_.limits.partition_pending_allocations = 1;
    Open();
  }
  ~CoordinatorSharing() override {
    coordinator_.reset();
    std::filesystem::remove_all(directory_);
  }
  void Open() {
    auto store = db::OpenSqliteStore({directory_ + "/test.db"});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::make_unique<FullStore>(*std::move(store));
    CoordinatorOptions options;
    options.runs_dir = "/runs";
    options.clock = &clock_;
    options.policy = policy_;
    options.worker_timeout = absl::Hours(10'000);
    options.secret_for = [](const std::string&) { return ""; };
    options.new_token = [this] { return absl::StrCat("token-", ++tokens_); };
    coordinator_ = std::make_unique<Coordinator>(std::move(options), *store_, scheduler_);
    ASSERT_TRUE(coordinator_->StartWithoutThreads().ok());
    Settle();
  }
  // Ends the process without any warning, and starts another one.
  void Restart() {
    coordinator_.reset();
    store_.reset();
    Open();
  }
  // Lets the coordinator execute all due actions, including two polls.
  void Settle() {
    for (int i = 0; i < 4; ++i) {
      coordinator_->PollSoon();
      clock_.since_start += absl::Milliseconds(60);
      coordinator_->Step();
      while (coordinator_->StepScheduler()) coordinator_->Step();
    }
  }
  // Sets the clock to `time` after the start of the test, then executes all due actions. The time that
  // earlier rounds added is not counted.
  void At(absl::Duration time) {
    clock_.since_start = absl::Hours(1) + time;
    Settle();
  }
  int64_t Submit(const std::string& owner, int nodes, int gpus_per_node = 0) {
    v1::StudySpec spec = World::Spec({nodes});
    spec.mutable_resources()->set_ranks_per_node(1);
    spec.mutable_resources()->set_gpus_per_rank(gpus_per_node);
    return Submit(spec, owner);
  }
  int64_t Submit(const v1::StudySpec& spec, const std::string& owner) {
    int64_t made = 0;
    coordinator_->Submit(MakeNewStudy(spec, *ExpandStudy(spec), owner, ""),
                         [&](absl::StatusOr<int64_t> id) { made = id.value_or(-1); });
    Settle();
    return made;
  }
  template <typename F>
  auto Read(F read) {
    decltype(read(std::declval<const State&>())) result{};
    coordinator_->Read([&](const State* state) {
      ASSERT_NE(state, nullptr);
      result = read(*state);
    });
    coordinator_->Step();
    return result;
  }
  db::Micros now() const { return absl::ToUnixMicros(clock_.Wall()); }
  std::vector<int64_t> Queue() {
    return Read([this](const State& state) {
      std::vector<int64_t> ids;
      for (const QueueEntry& entry : ListQueue(state, now(), 100)) ids.push_back(entry.study->row.id);
      return ids;
    });
  }
  double Share(const std::string& owner) {
    return Read([&](const State& state) { return CurrentUse(state, now()).Share(owner); });
  }
  db::UsageRow UsageOf(const std::string& owner) {
    return Read([&](const State& state) { return CurrentUse(state, now()).UsageOf(owner); });
  }
  // Returns the study whose job waits at the scheduler; 0 if there is none.
  int64_t Pending() {
    return Read([](const State& state) {
      int64_t study = 0;
      for (const auto& [id, allocation] : state.allocations) {
        if (Waits(allocation->row.state) && !allocation->cancel_sent) study = allocation->row.study_id;
      }
      return study;
    });
  }
  std::string TokenOf(int64_t study_id) {
    return Read([&](const State& state) {
      std::string token;
      for (const auto& [id, allocation] : state.allocations) {
        if (allocation->row.study_id == study_id) token = allocation->row.token;
      }
      return token;
    });
  }
  void SetJob(int64_t study, JobStatus::State state) {
    scheduler_.jobs[TokenOf(study)] = state;
    Settle();
  }
  absl::Status Cancel(int64_t study) {
    absl::Status status = absl::UnknownError("no answer");
    coordinator_->CancelStudy(study, [&](const absl::Status& s) { status = s; });
    Settle();
    return status;
  }

  std::string directory_;
  ManualClock clock_;
  ScriptedScheduler scheduler_;
  Policy policy_;
  int tokens_ = 0;
  std::unique_ptr<FullStore> store_;
  std::unique_ptr<Coordinator> coordinator_;
};

constexpr auto kRun = JobStatus::State::kRunning;
constexpr auto kEnd = JobStatus::State::kCancelled;
// With a half-life of one hour, the decayed usage of one node that is held for ever approaches 3600 s / ln 2.
// The comments below state usages in this unit, a "whole".
const double kWhole = 3600 / M_LN2;
// The rounds of the script take less than a second each.
constexpr double kTolerance = 20;

TEST_F(CoordinatorSharing, ThreeUsersStudiesAreServedInTheOrderComputedByHand) {
  // At 0 h nobody has used anything: the oldest study is first. One job may wait at a time.
  const int64_t a1 = Submit("ann", 4), a2 = Submit("ann", 1), b1 = Submit("bob", 2), b2 = Submit("bob", 1),
                c1 = Submit("cyd", 1);
  EXPECT_EQ(Pending(), a1);
  EXPECT_THAT(Queue(), ElementsAre(a2, b1, b2, c1));

  // At 1 h the job of a1 starts. Nobody has used anything yet, so a2 is the oldest. Immediately afterwards,
  // ann has used something.
  At(absl::Hours(1));
  SetJob(a1, kRun);
  EXPECT_EQ(Pending(), a2);
  EXPECT_THAT(Queue(), ElementsAre(b1, b2, c1));
  SetJob(a2, kEnd);  // its job ends before it begins; the study waits again, now behind the others
  At(absl::Hours(1) + absl::Minutes(5));
  EXPECT_EQ(Pending(), b1);
  EXPECT_THAT(Queue(), ElementsAre(b2, c1, a2));

  // At 2 h, ann has held four nodes for one hour: 4 * (1 - 1/2) wholes.
  At(absl::Hours(2));
  EXPECT_NEAR(Share("ann"), 2 * kWhole, kTolerance);
  SetJob(b1, kRun);
  EXPECT_EQ(Pending(), b2) << "bob has used as little as cyd, and b2 is older than c1";

  // At 3 h, bob has held two nodes for one hour, and ann four for two: 2 * 1/2 and 4 * 3/4 wholes.
  At(absl::Hours(3));
  SetJob(b2, kRun);
  EXPECT_EQ(Pending(), c1);
  EXPECT_NEAR(Share("ann"), 3 * kWhole, kTolerance);
  EXPECT_NEAR(Share("bob"), 1 * kWhole, kTolerance);

  // During this hour, the process is killed. Half an hour later another one starts.
  clock_.since_start = absl::Hours(1) + absl::Hours(3.5);
  Restart();
  EXPECT_EQ(Pending(), c1);
  const int64_t b3 = Submit("bob", 1), c2 = Submit("cyd", 1);
  EXPECT_THAT(Queue(), ElementsAre(c2, b3, a2));

  // At 4 h: ann 4 * (1 - 1/8) wholes; bob 2 * (1 - 1/4) for b1 and 1/2 for b2; cyd nothing. Now ann's job ends.
  At(absl::Hours(4));
  EXPECT_NEAR(Share("ann"), 3.5 * kWhole, kTolerance);
  EXPECT_NEAR(Share("bob"), 2.0 * kWhole, kTolerance);
  EXPECT_EQ(Share("cyd"), 0);
  ASSERT_TRUE(Cancel(a1).ok());
  SetJob(a1, kEnd);
  SetJob(c1, kRun);
  EXPECT_EQ(Pending(), c2);
  Restart();
  SetJob(c2, kRun);

  // At 7 h, ann's 3.5 wholes are three half-lives old, so 0.4375 remain. bob's two jobs have used 2 * (1 -
  // 1/32) and 1 - 1/16, in total 2.875. cyd's two jobs have each held a node for three hours: 2 * (1 - 1/8) =
  // 1.75. So ann is first now.
  At(absl::Hours(7));
  EXPECT_NEAR(Share("ann"), 0.4375 * kWhole, kTolerance);
  EXPECT_NEAR(Share("bob"), 2.875 * kWhole, kTolerance);
  EXPECT_NEAR(Share("cyd"), 1.75 * kWhole, kTolerance);
  EXPECT_NEAR(UsageOf("ann").node_seconds, 4 * 3 * 3600, kTolerance);
  const int64_t c3 = Submit("cyd", 1), b4 = Submit("bob", 1), a3 = Submit("ann", 1);
  // The job of b3 has been pending since c2 began: a2 and b3 were left then, and bob had used less than ann.
  EXPECT_EQ(Pending(), b3);
  EXPECT_THAT(Queue(), ElementsAre(a2, a3, c3, b4));
  SetJob(b3, kRun);
  EXPECT_EQ(Pending(), a2);
}

TEST_F(CoordinatorSharing, ARestartChargesNeitherTwiceNorNotAtAll) {
  const int64_t id = Submit("ann", 4);
  SetJob(id, kRun);
  const absl::Duration begin = clock_.since_start - absl::Hours(1);
  for (int i = 1; i <= 10; ++i) {
    clock_.since_start += absl::Minutes(7);
    Restart();
    const double held = absl::ToDoubleSeconds(clock_.since_start - absl::Hours(1) - begin);
    EXPECT_NEAR(UsageOf("ann").node_seconds, 4 * held, 4) << i;
  }
  ASSERT_TRUE(Cancel(id).ok());
  SetJob(id, kEnd);
  const double charged = UsageOf("ann").node_seconds;
  EXPECT_NEAR(charged, 4 * 10 * 7 * 60, 40);
  At(absl::Hours(30));
  Restart();
  EXPECT_EQ(UsageOf("ann").node_seconds, charged);
}

TEST_F(CoordinatorSharing, ADeletedStudyLeavesItsUsage) {
  const int64_t id = Submit("ann", 2, 4);
  SetJob(id, kRun);
  At(absl::Hours(2));
  // The study is over before its job is.
  coordinator_->CancelStudy(id, [](const absl::Status&) {});
  coordinator_->Step();
  const std::string token = TokenOf(id);
  absl::Status deleted = absl::UnknownError("no answer");
  coordinator_->DeleteStudy(id, [&](const absl::Status& s) { deleted = s; });
  Settle();
  ASSERT_TRUE(deleted.ok()) << deleted;
  while (*store_->Maintain()) {
  }
  scheduler_.jobs[token] = kRun;  // the job has not ended yet
  Restart();
  At(absl::Hours(3));
  scheduler_.jobs[token] = kEnd;
  Settle();
  Restart();
  EXPECT_TRUE(absl::IsNotFound(store_->GetStudy(id).status()));
  EXPECT_NEAR(UsageOf("ann").node_seconds, 2 * 3 * 3600, 10);
  EXPECT_NEAR(UsageOf("ann").gpu_seconds, 8 * 3 * 3600, 40);
  EXPECT_NEAR(Read([this](const State& state) { return CurrentUse(state, now()).GpuSecondsOfWeek("ann"); }),
              8 * 3 * 3600, 40);
}

TEST_F(CoordinatorSharing, AFailedCommitChangesNoUsage) {
  const int64_t id = Submit("ann", 1);
  SetJob(id, kRun);
  At(absl::Hours(2));
  store_->full = true;
  scheduler_.jobs[TokenOf(id)] = JobStatus::State::kNodeFail;
  Settle();
  EXPECT_NEAR(UsageOf("ann").node_seconds, 2 * 3600, 5);
  At(absl::Hours(3));
  EXPECT_NEAR(UsageOf("ann").node_seconds, 3 * 3600, 5) << "its end is not stored yet";
  store_->full = false;
  Settle();
  const double charged = UsageOf("ann").node_seconds;
  EXPECT_NEAR(charged, 3 * 3600, 5);
  Restart();
  EXPECT_NEAR(UsageOf("ann").node_seconds, charged, 5);
}

TEST_F(CoordinatorSharing, AClockThatIsSetIsNotChargedAfterARestartEither) {
  const int64_t id = Submit("ann", 1);
  SetJob(id, kRun);
  At(absl::Hours(1));
  clock_.wall_offset = absl::Hours(100);
  Settle();
  At(absl::Hours(1) + absl::Seconds(10));
  Restart();
  EXPECT_NEAR(UsageOf("ann").node_seconds, 3600, 20);
  clock_.wall_offset = absl::ZeroDuration();
  Settle();
  At(absl::Hours(2));
  Restart();
  EXPECT_NEAR(UsageOf("ann").node_seconds, 2 * 3600, 20);
}

TEST_F(CoordinatorSharing, HoldsPrioritiesAndDrainModeSurviveARestart) {
  const int64_t first = Submit("ann", 1), held = Submit("ann", 1), urgent = Submit("bob", 1);
  SetJob(first, kRun);
  int live = -1;
  coordinator_->SetDrain(true, "new switch", [&](const absl::StatusOr<int>& n) { live = n.value_or(-2); });
  coordinator_->HoldStudy(held, [](const absl::Status& s) { EXPECT_TRUE(s.ok()) << s; });
  coordinator_->SetPriority(urgent, 7, [](const absl::Status& s) { EXPECT_TRUE(s.ok()) << s; });
  Settle();
  EXPECT_EQ(live, 0);
  const size_t submitted = scheduler_.submitted.size();
  Restart();
  At(absl::Hours(5));
  EXPECT_EQ(scheduler_.submitted.size(), submitted);
  EXPECT_EQ(Pending(), 0);
  EXPECT_EQ(Queue().front(), urgent);
  const auto why = [&](int64_t id) {
    return Read([&](const State& state) {
      std::string text;
      for (const v1::Reason& reason : ExplainStudy(state, *state.study(id), now()))
        text += reason.message() + "\n";
      return text;
    });
  };
  EXPECT_THAT(why(urgent), HasSubstr("the service is being drained: new switch"));
  EXPECT_THAT(why(held), HasSubstr("its study is held"));
  coordinator_->SetDrain(false, "", [](const absl::StatusOr<int>&) {});
  Settle();
  EXPECT_EQ(Pending(), urgent);
  Restart();
  EXPECT_THAT(why(held), HasSubstr("its study is held"));
  EXPECT_THAT(why(held), testing::Not(HasSubstr("drained")));
}

TEST_F(CoordinatorSharing, ADrainThatCouldNotBeStoredDidNotHappen) {
  store_->full = true;
  absl::StatusOr<int> answer = 0;
  coordinator_->SetDrain(true, "", [&](const absl::StatusOr<int>& n) { answer = n; });
  Settle();
  EXPECT_TRUE(absl::IsResourceExhausted(answer.status())) << answer.status();
  store_->full = false;
  const int64_t id = Submit("ann", 1);
  EXPECT_EQ(Pending(), id) << "its job is submitted";
}

TEST_F(CoordinatorSharing, GpuHoursOfEndedAllocationsCountAfterARestart) {
  v1::StudySpec spec = World::Spec({1});
  spec.mutable_resources()->set_gpus_per_rank(2);
  spec.mutable_limits()->set_gpu_hours(4);
  const int64_t id = Submit(spec, "ann");
  SetJob(id, kRun);
  At(absl::Hours(1));  // half of the limit is used
  SetJob(id, JobStatus::State::kPreempted);
  At(absl::Hours(1) + absl::Minutes(10));
  ASSERT_EQ(Pending(), id) << "another allocation replaces it";
  Restart();
  SetJob(id, kRun);
  Restart();
  At(absl::Hours(2) + absl::Minutes(5));
  EXPECT_EQ(store_->GetStudy(id)->state, db::StudyState::kQueued) << "5 minutes are left";
  At(absl::Hours(2) + absl::Minutes(15));
  EXPECT_EQ(store_->GetStudy(id)->state, db::StudyState::kFailed);
  db::RunFilter all;
  all.study_id = id;
  EXPECT_THAT(store_->ListRuns(all)->at(0).message, HasSubstr("limits.gpu_hours is 4"));
}

TEST_F(CoordinatorSharing, AtMostFourFailedAllocationsCountAfterARestart) {
  const int64_t id = Submit("ann", 1);
  const auto fail = [&](int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_EQ(Pending(), id) << i;
      SetJob(id, JobStatus::State::kFailed);
      At(clock_.since_start - absl::Hours(1) + absl::Minutes(10));  // longer than every backoff
    }
  };
  fail(7);
  Restart();
  fail(3);
  EXPECT_EQ(Pending(), id) << "4 and 3 allocations have failed";
  EXPECT_EQ(store_->GetStudy(id)->state, db::StudyState::kQueued);
  fail(1);
  EXPECT_EQ(store_->GetStudy(id)->state, db::StudyState::kFailed);
  db::RunFilter all;
  all.study_id = id;
  EXPECT_THAT(store_->ListRuns(all)->at(0).message,
              HasSubstr("8 allocations in a row ended before an attempt began"));
}

TEST_F(CoordinatorSharing, CancellingManyJobsIsOneCallOfTheScheduler) {
  policy_.limits.partition_pending_allocations = LimitSet::kNone;
  LimitRule rule;
  rule.pending_allocations = LimitSet::kNone;
  policy_.limits.rules = {rule};
  Restart();
  v1::StudySpec spec = World::Spec({1}, 100);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  const int64_t id = Submit(spec, "ann");
  ASSERT_EQ(scheduler_.submitted.size(), 100u);
  ASSERT_TRUE(Cancel(id).ok());
  EXPECT_EQ(scheduler_.cancels, 1);
  EXPECT_THAT(scheduler_.jobs, testing::Each(testing::Pair(testing::_, kEnd)));
}

TEST_F(CoordinatorSharing, LimitsChangeWhileItRuns) {
  Submit("ann", 1);
  Submit("bob", 1);
  Submit("cyd", 1);
  EXPECT_EQ(scheduler_.submitted.size(), 1u);
  CoordinatorTuning tuning;
  tuning.policy = policy_;
  tuning.policy.limits.partition_pending_allocations = LimitSet::kNone;
  coordinator_->Configure(tuning);
  Settle();
  EXPECT_EQ(scheduler_.submitted.size(), 3u);
}

TEST_F(CoordinatorSharing, AShorterPollIntervalAppliesToTheNextPoll) {
  Submit("ann", 1);
  CoordinatorTuning tuning;
  tuning.policy = policy_;
  tuning.poll_interval = absl::Hours(1);
  coordinator_->Configure(tuning);
  At(absl::Hours(1));  // polls, so that the next poll is an hour away
  tuning.poll_interval = absl::Seconds(10);
  coordinator_->Configure(tuning);
  coordinator_->Step();
  const int polls = scheduler_.polls;
  clock_.since_start += absl::Seconds(10);
  coordinator_->Step();
  while (coordinator_->StepScheduler()) coordinator_->Step();
  EXPECT_EQ(scheduler_.polls, polls + 1);
}

}  // namespace
}  // namespace scalelab::server
