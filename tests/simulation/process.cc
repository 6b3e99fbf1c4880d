#include "tests/simulation/process.h"

#include <utility>

#include "db/sqlite_store.h"
#include "tests/simulation/model.h"
#include "tests/unit/server/core/forwarding_store.h"

namespace scalelab::simulation {
namespace {

struct Crashed {};  // unwinds the stack of the process that crashes

}  // namespace

// The database with its disk.
class Process::Store final : public server::ForwardingStore {
 public:
  Store(Process& process, std::unique_ptr<db::Store> store)
      : ForwardingStore(std::move(store)), process_(process), world_(process.world_) {}

  absl::Status Commit(const db::WriteBatch& batch) override {
    process_.MaybeCrash(Fault::kCrashInCommit);
    if (world_.faults.Occurs(Fault::kSlowDisk)) {
      process_.Block(world_.random.Time(absl::Milliseconds(100), absl::Seconds(40)));
    }
    if (world_.queue.Steady() < process_.full_until_) return absl::ResourceExhaustedError("the disk is full");
    if (world_.faults.Occurs(Fault::kDatabaseLocked)) return absl::UnavailableError("the database is locked");
    const absl::Status status = ForwardingStore::Commit(batch);
    if (status.ok()) {
      process_.model_.Committed(batch);
    } else {
      world_.Violation("the store refused a commit: ", status.ToString());
    }
    process_.MaybeCrash(Fault::kCrashInCommit);
    return status;
  }

 private:
  Process& process_;
  World& world_;
};

Process::Process(World& world, Model& model, std::string database)
    : world_(world), model_(model), database_(std::move(database)) {
  worker_timeout_ = world_.random.Chance(0.5) ? absl::Minutes(15) : absl::Minutes(1);
  poll_interval_ = world_.random.Chance(0.8) ? absl::Seconds(15) : absl::Seconds(3);
}

Process::~Process() { Die(); }

db::Store& Process::store() { return *store_; }

void Process::Start() {
  Open();
  for (const Fault fault : {Fault::kCrash, Fault::kProcessStopped, Fault::kDiskFull, Fault::kClockJump})
    Misbehave(fault);
}

void Process::Open() {
  auto store = db::OpenSqliteStore({database_, false, 1});
  if (!store.ok()) return world_.Violation("the database cannot be opened: ", store.status().ToString());
  store_ = std::make_unique<Store>(*this, *std::move(store));
  model_.CheckStore(*store_);
  server::CoordinatorOptions options;
  options.runs_dir = "/runs";
  options.clock = &world_.queue;
  options.worker_timeout = worker_timeout_;
  options.poll_interval = poll_interval_;
  options.secret_for = [](const std::string&) { return ""; };
  options.new_token = [this] { return absl::StrCat("token-", ++tokens_); };
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
  if (const absl::Duration left = stopped_until_ - world_.queue.Steady(); left > absl::ZeroDuration()) {
    world_.queue.After(left, [this, life = life_, receive = std::move(receive)] {
      if (life == life_) Deliver(receive);
    });
    return true;
  }
  receive();
  StepAt(world_.queue.Steady() + world_.random.Time(absl::ZeroDuration(), absl::Milliseconds(2)));
  return true;
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

void Process::Block(absl::Duration time) { world_.queue.RunUntil(world_.queue.Steady() + time); }

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
  ++life_;  // what the destructor answers is not sent
  stepping_ = calling_ = false;
  step_due_ = absl::InfiniteDuration();
  ++step_number_;
  coordinator_.reset();
  store_.reset();
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
      case Fault::kProcessStopped:
        stopped_until_ = std::max(stopped_until_, now + lasts);
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
