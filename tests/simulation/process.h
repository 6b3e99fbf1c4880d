// The simulated process of scalelabd: a real coordinator on a real database. It can crash at every point where it
// waits for the disk or the scheduler, and is restarted.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/simulation/slurm.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

class Model;

class Process {
 public:
  Process(World& world, Model& model, std::string database);
  ~Process();

  void set_scheduler(server::Scheduler& scheduler) { scheduler_ = &scheduler; }
  // Starts the coordinator and the faults of this machine.
  void Start();

  bool running() const { return coordinator_ != nullptr; }
  // Calls `receive` when the process takes the message: now, or when it is no longer stopped. Returns false if
  // there is no process to take it.
  bool Deliver(std::function<void()> receive);
  server::Coordinator& coordinator() { return *coordinator_; }
  db::Store& store();
  // Grows at each crash. An answer of an earlier life is not sent.
  int life() const { return life_; }

  // For the scheduler and the store: crashes if a fault occurs, lets virtual time pass while the caller is blocked.
  void MaybeCrash(Fault fault);
  void Block(absl::Duration time);

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

  World& world_;
  Model& model_;
  const std::string database_;
  server::Scheduler* scheduler_ = nullptr;
  std::unique_ptr<Store> store_;
  std::unique_ptr<server::Coordinator> coordinator_;
  int life_ = 0;
  int tokens_ = 0;
  int depth_ = 0;  // nested calls of Guard
  // The core thread and the thread that calls the scheduler are busy; a task arrived while the core thread was.
  bool stepping_ = false, calling_ = false, arrived_ = false;
  absl::Duration worker_timeout_, poll_interval_;
  absl::Duration stopped_until_ = absl::ZeroDuration();
  absl::Duration full_until_ = absl::ZeroDuration();
  absl::Duration step_due_ = absl::InfiniteDuration();
  uint64_t step_number_ = 0;
};

}  // namespace scalelab::simulation
