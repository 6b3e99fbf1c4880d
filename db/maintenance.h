// A thread that calls Store::Maintain.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "db/store.h"

namespace scalelab::db {

// Calls Store::Maintain on a thread of its own. The destructor waits for the call in progress and ends the thread.
class Maintenance {
 public:
  // `store` must outlive this object. The thread calls `report` with each error. It then waits, and
  // doubles the wait after each further error up to some minutes, because only an operator can repair a
  // damaged or full disk.
  Maintenance(Store& store, std::function<void(const absl::Status&)> report);
  ~Maintenance();
  Maintenance(const Maintenance&) = delete;
  Maintenance& operator=(const Maintenance&) = delete;

 private:
  void Run();

  Store& store_;
  const std::function<void(const absl::Status&)> report_;
  // Timeouts of std::condition_variable follow the steady clock, those of absl::Mutex the wall clock.
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace scalelab::db
