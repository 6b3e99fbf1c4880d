// The core thread with a real database and a scheduler that accepts everything.
#include "server/core/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <future>

#include "absl/strings/str_cat.h"
#include "db/sqlite_store.h"
#include "tests/unit/server/core/forwarding_store.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

class ObedientScheduler final : public Scheduler {
 public:
  std::string name() const override { return "obedient"; }
  Capacity capacity() const override { return {}; }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override {
    submitted.set_value(request);
    if (silent) return absl::UnavailableError("the submit timed out");
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
  absl::Status Cancel(const std::string&) override { return absl::OkStatus(); }
  std::atomic<bool> away = false;
  std::atomic<int> views = 0;
  std::promise<JobRequest> submitted;  // once
  std::atomic<bool> silent = false;    // takes no job, has none
  std::atomic<size_t> polls = 0;       // tokens asked about
};

// Fails commits on demand.
class FragileStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status Commit(const db::WriteBatch& batch) override {
    return full ? absl::ResourceExhaustedError("the disk is full") : ForwardingStore::Commit(batch);
  }
  std::atomic<bool> full = false;
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
  request.set_generation(first->generation());
  std::promise<absl::Status> held;
  coordinator_->Synchronize(job, request,
                            [&](absl::StatusOr<v1::SynchronizeResponse> r) { held.set_value(r.status()); });
  coordinator_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(held.get_future().get()));
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

TEST_F(CoordinatorTest, AStoppedCoordinatorRefusesAView) {
  coordinator_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(View()));
}

}  // namespace
}  // namespace scalelab::server
