#include "tests/simulation/process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "db/sqlite_store.h"
#include "tests/simulation/model.h"
#include "tests/unit/server/core/forwarding_store.h"

namespace scalelab::simulation {
namespace {

struct Crashed {};  // unwinds the stack of the process that crashes

}  // namespace

// The store, with a simulated disk if power failures are enabled.
class Process::Store final : public server::ForwardingStore {
 public:
  Store(Process& process, std::unique_ptr<db::Store> store)
      : ForwardingStore(std::move(store)), process_(process), world_(process.world_) {}

  absl::Status Commit(const db::WriteBatch& batch) override {
    process_.CheckSilence(batch);
    process_.MaybeCrash(Fault::kCrashInCommit);
    if (world_.faults.Occurs(Fault::kSlowDisk)) {
      process_.BlockCore(world_.random.Time(absl::Milliseconds(100), absl::Seconds(40)));
    }
    if (world_.queue.Steady() < process_.full_until_) return absl::ResourceExhaustedError("the disk is full");
    if (world_.faults.Occurs(Fault::kDatabaseLocked)) return absl::UnavailableError("the database is locked");
    const bool cut = process_.power_ != nullptr && world_.faults.Occurs(Fault::kPowerCutInCommit);
    if (cut) process_.power_->BeginCommit();
    const absl::Status status = ForwardingStore::Commit(batch);
    if (cut) {
      process_.power_->CutCommit(batch);
      throw Crashed();
    }
    if (status.ok()) {
      process_.model_.Committed(batch);
    } else {
      world_.Violation("the store refused a commit: ", status.ToString());
    }
    process_.MaybeCrash(Fault::kCrashInCommit);
    if (process_.power_ != nullptr) process_.power_->Settle();
    process_.MaintainSoon();
    return status;
  }

 private:
  Process& process_;
  World& world_;
};

Process::Process(World& world, Model& model, std::string database)
    : world_(world), model_(model), database_(std::move(database)) {
  constexpr absl::Duration kTimeouts[] = {absl::Seconds(20), absl::Minutes(1), absl::Minutes(15)};
  worker_timeout_ = kTimeouts[world_.random.Between(0, 2)];
  poll_interval_ = world_.random.Chance(0.8) ? absl::Seconds(15) : absl::Seconds(3);
  rollback_journal_ = world_.random.Chance(0.3);
  policy_.fair_share.half_life = world_.random.Chance(0.5) ? absl::Hours(1) : absl::Hours(24 * 7);
  if (world_.random.Chance(0.3))
    policy_.limits.partition_pending_allocations = static_cast<double>(world_.random.Between(1, 3));
  if (world_.random.Chance(0.3)) {
    server::LimitRule rule;
    rule.running_allocations = static_cast<double>(world_.random.Between(1, 4));
    policy_.limits.rules = {rule};
  }
  if (world_.faults.Enabled(Fault::kPowerCut) || world_.faults.Enabled(Fault::kPowerCutInCommit))
    power_ = std::make_unique<Power>(world_, database_);
}

Process::~Process() { Die(); }

db::Store& Process::store() { return *store_; }

void Process::Start() {
  Open();
  for (const Fault fault : {Fault::kCrash, Fault::kPowerCut, Fault::kProcessStopped, Fault::kCallsStuck,
                            Fault::kDiskFull, Fault::kClockJump})
    Misbehave(fault);
}

void Process::Open() {
  if (power_ != nullptr) {
    if (const auto batch = power_->TakeCommitted()) model_.Committed(*batch);
  }
  db::SqliteOptions database;
  database.path = database_;
  database.rollback_journal = rollback_journal_;
  database.readers = 1;
  if (power_ != nullptr) database.checkpoint_pages = 64;  // so that there are checkpoints
  auto store = db::OpenSqliteStore(database);
  if (!store.ok()) return world_.Violation("the database cannot be opened: ", store.status().ToString());
  store_ = std::make_unique<Store>(*this, *std::move(store));
  model_.CheckStore(*store_);
  server::CoordinatorOptions options;
  options.runs_dir = kRunsDirectory;
  options.clock = &world_.queue;
  options.events = events_;
  options.worker_timeout = worker_timeout_;
  options.policy = policy_;
  options.poll_interval = poll_interval_;
  options.secret_for = [](const std::string&) { return ""; };
  options.new_token = [this] { return absl::StrCat("token-", ++tokens_); };
  scheduler_ = new_scheduler_();
  coordinator_ = std::make_unique<server::Coordinator>(std::move(options), *store_, *scheduler_);
  if (auto s = coordinator_->StartWithoutThreads(); !s.ok()) {
    world_.Violation("the coordinator does not start: ", s.ToString());
    coordinator_.reset();
    return;
  }
  world_.Trace("process: starts");
  StepAt(world_.queue.Steady());
}

bool Process::Deliver(std::function<void()> receive) {
  if (coordinator_ == nullptr) return false;
  if (const absl::Duration left = stuck_until_ - world_.queue.Steady(); left > absl::ZeroDuration()) {
    world_.queue.After(left, [this, life = life_, receive = std::move(receive)] {
      if (life == life_) Deliver(receive);
    });
    return true;
  }
  Continue(std::move(receive));
  return true;
}

void Process::Continue(std::function<void()> work) {
  if (coordinator_ == nullptr) return;
  if (const absl::Duration left = stopped_until_ - world_.queue.Steady(); left > absl::ZeroDuration()) {
    world_.queue.After(left, [this, life = life_, work = std::move(work)] {
      if (life == life_) Continue(work);
    });
    return;
  }
  work();
  StepAt(world_.queue.Steady() + world_.random.Time(absl::ZeroDuration(), absl::Milliseconds(2)));
}

absl::Duration Process::NotServed(absl::Duration begin) const {
  std::vector<std::pair<absl::Duration, absl::Duration>> spans = not_served_;
  std::sort(spans.begin(), spans.end());
  absl::Duration sum = absl::ZeroDuration();
  for (const auto& [from, to] : spans) {
    const absl::Duration end = std::min(to, world_.queue.Steady());
    const absl::Duration start = std::max(from, begin);
    if (end > start) sum += end - start;
    begin = std::max(begin, end);
  }
  return sum;
}

// A worker counts as silent only in the time in which the process could have handled its reports.
void Process::CheckSilence(const db::WriteBatch& batch) {
  constexpr absl::Duration kTolerance = absl::Seconds(4);
  for (const db::AllocationRow& row : batch.allocations) {
    if (!absl::StrContains(row.reason, "was silent for") || !silent_.insert(row.token).second) continue;
    const absl::Duration last = model_.LastReport(row.token);
    const absl::Duration served = world_.queue.Steady() - last - NotServed(last);
    if (served < worker_timeout_ - kTolerance)
      world_.Violation("allocation ", row.token, ": ", row.reason, ", and the process served for ",
                       absl::FormatDuration(served), " since the last report");
  }
}

// --- Threads

void Process::Guard(const std::function<void()>& work) {
  ++depth_;
  try {
    work();
    --depth_;
  } catch (const Crashed&) {
    if (--depth_ > 0) throw;
    Die();
  }
}

void Process::StepAt(absl::Duration due) {
  if (due >= step_due_ || due == absl::InfiniteDuration()) return;
  step_due_ = due;
  world_.queue.After(due - world_.queue.Steady(), [this, number = ++step_number_] {
    if (number == step_number_) Step();
  });
}

void Process::Step() {
  step_due_ = absl::InfiniteDuration();
  arrived_ = stepping_;
  if (coordinator_ == nullptr || stepping_) return;
  if (stopped_until_ > world_.queue.Steady()) return StepAt(stopped_until_);
  Guard([this] {
    stepping_ = true;
    if (world_.queue.Steady() >= stuck_until_) coordinator_->NoteServing();
    coordinator_->Step();
    stepping_ = false;
    const absl::Duration soon = world_.queue.Steady() + absl::Milliseconds(1);
    StepAt(std::exchange(arrived_, false) ? soon : std::max(coordinator_->NextStep(), soon));
  });
  if (!calling_)
    world_.queue.After(absl::ZeroDuration(), [this, life = life_] {
      if (life == life_) StepScheduler();
    });
}

void Process::StepScheduler() {
  if (coordinator_ == nullptr || calling_) return;
  if (const absl::Duration left = stopped_until_ - world_.queue.Steady(); left > absl::ZeroDuration()) {
    world_.queue.After(left, [this, life = life_] {
      if (life == life_) StepScheduler();
    });
    return;
  }
  bool called = false;
  Guard([&] {
    calling_ = true;
    called = coordinator_->StepScheduler();
    calling_ = false;
  });
  if (!called || coordinator_ == nullptr) return;
  StepAt(world_.queue.Steady());
  world_.queue.After(absl::ZeroDuration(), [this, life = life_] {
    if (life == life_) StepScheduler();
  });
}

// Simulates the daemon's maintenance thread.
void Process::MaintainSoon() {
  if (std::exchange(maintaining_, true)) return;
  world_.queue.After(world_.random.Time(absl::Milliseconds(1), absl::Seconds(5)), [this, life = life_] {
    if (life != life_ || coordinator_ == nullptr) return;
    maintaining_ = false;
    const absl::StatusOr<bool> more = store_->Maintain();
    if (!more.ok())
      return world_.Violation("the maintenance of the store failed: ", more.status().ToString());
    if (power_ != nullptr) power_->Settle();
    if (*more) MaintainSoon();
  });
}

void Process::Block(absl::Duration time) { world_.queue.RunUntil(world_.queue.Steady() + time); }

void Process::BlockCore(absl::Duration time) {
  not_served_.emplace_back(world_.queue.Steady(), world_.queue.Steady() + time);
  Block(time);
}

// --- Faults

void Process::MaybeCrash(Fault fault) {
  if (!world_.faults.Occurs(fault)) return;
  world_.Trace("process: ", Name(fault));
  throw Crashed();
}

void Process::Crash(const char* how) {
  if (coordinator_ == nullptr) return;
  world_.Trace("process: ", how);
  if (depth_ > 0) throw Crashed();
  Die();
}

void Process::Die() {
  if (coordinator_ == nullptr) return;
  ++life_;  // answers of the destructor are not sent
  stepping_ = calling_ = false;
  step_due_ = absl::InfiniteDuration();
  ++step_number_;
  coordinator_.reset();
  scheduler_.reset();
  if (power_ != nullptr) {
    power_->Kill([this] { store_.reset(); });
  } else {
    store_.reset();
  }
  maintaining_ = false;
  world_.queue.After(
      world_.random.Time(absl::Milliseconds(500), absl::Minutes(world_.random.Chance(0.2) ? 30 : 1)), [this] {
        if (coordinator_ == nullptr) Open();
      });
}

void Process::Misbehave(Fault fault) {
  const absl::Duration until = world_.faults.Until(fault);
  if (until == absl::InfiniteDuration()) return;
  world_.queue.After(until, [this, fault] {
    if (world_.faults.Over()) return;
    Misbehave(fault);
    world_.faults.Count(fault);
    const absl::Duration now = world_.queue.Steady();
    const absl::Duration lasts =
        world_.random.Time(absl::Seconds(1), absl::Minutes(world_.random.Chance(0.2) ? 20 : 2));
    world_.Trace("process: ", Name(fault), ", ", absl::FormatDuration(lasts));
    switch (fault) {
      case Fault::kCrash:
        return Crash("crashes");
      case Fault::kPowerCut:
        if (coordinator_ != nullptr) power_->Cut();
        return Crash("loses power");
      case Fault::kProcessStopped:
        stopped_until_ = std::max(stopped_until_, now + lasts);
        not_served_.emplace_back(now + absl::Seconds(1),
                                 now + lasts);  // it detects the pause after a step was due
        return;
      case Fault::kCallsStuck:
        stuck_until_ = std::max(stuck_until_, now + lasts);
        if (lasts > absl::Seconds(5)) not_served_.emplace_back(now, now + lasts);
        return;
      case Fault::kDiskFull:
        full_until_ = std::min(world_.faults.End(), now + lasts);
        return;
      default:
        return world_.queue.SetWall(world_.random.Chance(0.5) ? lasts : -lasts);
    }
  });
}

}  // namespace scalelab::simulation
