#include "server/services/watch_hub.h"

#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

class ManualClock final : public Clock {
 public:
  absl::Time Wall() const override { return absl::FromUnixSeconds(1'800'000'000) + passed; }
  absl::Duration Steady() const override { return absl::Hours(1) + passed; }
  absl::Duration passed = absl::ZeroDuration();
};

// A hub whose coordinator runs in the test's thread. The streams are not connected to calls, so gRPC
// keeps their messages.
class WatchHubTest : public testing::Test {
 protected:
  using Reactor = grpc::ServerWriteReactor<v1::WatchStudyResponse>;

  WatchHubTest() {
    std::string pattern = "/tmp/scalelab-hub-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    store_ = *db::OpenSqliteStore({directory_ + "/test.db"});
    CoordinatorOptions options;
    options.clock = &clock_;
    options.secret_for = [](const std::string&) { return ""; };
    options.new_token = [this] { return absl::StrCat("token-", ++tokens_); };
    coordinator_ = std::make_unique<Coordinator>(std::move(options), *store_, scheduler_);
    EXPECT_TRUE(coordinator_->StartWithoutThreads().ok());
    hub_ = std::make_unique<WatchHub>(*coordinator_, pool_,
                                      [](int64_t, v1::Study*) { return absl::OkStatus(); });
  }
  ~WatchHubTest() override {
    coordinator_->Stop();
    pool_.Stop(absl::InfiniteDuration());
    for (const auto& stream : streams_) {
      static_cast<Reactor&>(*stream).OnCancel();
      static_cast<Reactor&>(*stream).OnDone();
    }
    std::filesystem::remove_all(directory_);
  }
  // Lets a second pass, which is longer than the time between two reports of a study.
  void Pass() {
    clock_.passed += absl::Seconds(1);
    do coordinator_->Step();
    while (coordinator_->StepScheduler());
  }
  int64_t Submit() {
    absl::StatusOr<int64_t> study;
    const v1::StudySpec spec = World::Spec({1});
    coordinator_->Submit(MakeNewStudy(spec, *ExpandStudy(spec), "ann", ""),
                         [&](absl::StatusOr<int64_t> id) { study = std::move(id); });
    Pass();
    EXPECT_TRUE(study.ok()) << study.status();
    return study.value_or(0);
  }
  void Watch(int64_t study) {
    streams_.push_back(hub_->Open("peer"));
    hub_->Join(study, streams_.back());
  }

  std::string directory_;
  int tokens_ = 0;
  ManualClock clock_;
  IdleScheduler scheduler_;
  std::unique_ptr<db::Store> store_;
  std::unique_ptr<Coordinator> coordinator_;
  CallPool pool_{"watches", 2, 1024};
  std::unique_ptr<WatchHub> hub_;
  std::vector<std::shared_ptr<WatchStream>> streams_;
};

TEST_F(WatchHubTest, DescribesAChangeOnceForAllWatchersOfTheStudy) {
  const int64_t study = Submit();
  Watch(study);
  for (int i = 0; i < 5; ++i) Pass();  // its job is pending now
  const int64_t alone = hub_->descriptions();
  for (int i = 0; i < 99; ++i) Watch(study);
  Pass();
  EXPECT_EQ(hub_->descriptions(), alone + 1) << "one for all watchers that join at once";
  Watch(study);
  Pass();
  const int64_t joined = hub_->descriptions();
  EXPECT_EQ(joined, alone + 2) << "a later watcher gets the state at its start";
  Pass();
  EXPECT_EQ(hub_->descriptions(), joined) << "nothing has changed";
  absl::Status held = absl::UnknownError(""), cancelled = held;
  coordinator_->HoldStudy(study, [&](absl::Status status) { held = std::move(status); });
  Pass();
  EXPECT_TRUE(held.ok()) << held;
  EXPECT_EQ(hub_->descriptions(), joined + 1);
  coordinator_->CancelStudy(study, [&](absl::Status status) { cancelled = std::move(status); });
  Pass();
  EXPECT_TRUE(cancelled.ok()) << cancelled;
  EXPECT_GT(hub_->descriptions(), joined + 1);
  EXPECT_LE(hub_->descriptions(), joined + 3) << "it is cancelled, and then final";
}

}  // namespace
}  // namespace scalelab::server
