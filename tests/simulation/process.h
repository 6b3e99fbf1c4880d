// The simulated process of scalelabd: a real coordinator on a real database. It can crash at every point where it
// waits for the disk or the scheduler, and is restarted.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/simulation/power.h"
#include "tests/simulation/slurm.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

class Model;

// Below the working directory, so that no path depends on the machine.
inline constexpr char kRunsDirectory[] = "runs";

class Process {
 public:
  Process(World& world, Model& model, std::string database);
  ~Process();

  // `make` makes the scheduler of each life of the process.
  void set_scheduler(std::function<std::unique_ptr<server::Scheduler>()> make) {
    new_scheduler_ = std::move(make);
  }
  void set_events(server::EventReader& events) { events_ = &events; }
  // Starts the coordinator and the faults of this machine.
  void Start();

  bool running() const { return coordinator_ != nullptr; }
  // Calls `receive` when the process handles the message: now, or when it is no longer stopped. Returns false
  // if the process does not exist.
  bool Deliver(std::function<void()> receive);
  // Calls `work`, which passes the coordinator the result of a thread of this process: now, or when the process is no
  // longer stopped. Never after a crash.
  void Continue(std::function<void()> work);
  // Returns how much of the time from `begin` until now the process was stopped or blocked, or
  // handled no calls.
  absl::Duration NotServed(absl::Duration begin) const;
  absl::Duration worker_timeout() const { return worker_timeout_; }
  server::Coordinator& coordinator() { return *coordinator_; }
  db::Store& store();
  // Increases at each crash. Answers from before a crash are not sent.
  int life() const { return life_; }

  // For the scheduler and the store. MaybeCrash ends the process if the fault occurs at this call. Block and BlockCore let
  // virtual time pass in which the caller is blocked.
  void MaybeCrash(Fault fault);
  void Block(absl::Duration time);
  void BlockCore(absl::Duration time);  // the core thread

 private:
  class Store;

  void Open();
  void Crash(const char* how);
  void Die();
  void Guard(const std::function<void()>& work);
  void StepAt(absl::Duration due);
  void Step();
  void StepScheduler();
  void Misbehave(Fault fault);
  void CheckSilence(const db::WriteBatch& batch);
  void MaintainSoon();

  World& world_;
  Model& model_;
  const std::string database_;
  std::function<std::unique_ptr<server::Scheduler>()> new_scheduler_;
  server::EventReader* events_ = nullptr;
  std::unique_ptr<Power> power_;  // null: this seed has no power cuts, and the database is a file
  bool rollback_journal_;
  server::Policy policy_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<server::Scheduler> scheduler_;
  std::unique_ptr<server::Coordinator> coordinator_;
  int life_ = 0;
  int tokens_ = 0;
  int depth_ = 0;  // nested calls of Guard
  // Whether the core thread is busy, whether the thread that calls the scheduler is busy, and whether a task
  // arrived while the core thread was busy.
  bool stepping_ = false, calling_ = false, arrived_ = false;
  bool maintaining_ = false;
  absl::Duration worker_timeout_, poll_interval_;
  absl::Duration stopped_until_ = absl::ZeroDuration();
  absl::Duration full_until_ = absl::ZeroDuration();
  absl::Duration stuck_until_ = absl::ZeroDuration();
  std::vector<std::pair<absl::Duration, absl::Duration>> not_served_;  // from, to
  std::set<std::string> silent_;  // allocations that were cancelled because a worker was silent
  absl::Duration step_due_ = absl::InfiniteDuration();
  uint64_t step_number_ = 0;
};

}  // namespace scalelab::simulation
