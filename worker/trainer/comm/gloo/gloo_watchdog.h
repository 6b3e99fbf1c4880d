// Monitors the timeouts of Gloo's operations, because Gloo's own timeouts also count time in which the
// process was stopped.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peers/peer_watch.h"

namespace scalelab::trainer {

// Shared by all communicators of a run. At the first operation that is past its deadline, the watchdog calls
// PeerWatch::Investigate, which interrupts all operations of this rank. Gloo reports them as failed, and
// their error message is the verdict.
class GlooWatchdog {
 public:
  // `timeout` is the one of all operations, for the error message. `watch` must outlive the watchdog.
  GlooWatchdog(PeerWatch& watch, std::chrono::milliseconds timeout);
  ~GlooWatchdog();

  // Monitors an operation for the lifetime of this object. `members` are the ranks of a group in the run;
  // empty means all ranks. The arguments must outlive this object.
  class Monitored {
   public:
    Monitored(GlooWatchdog& watchdog, const Operation& operation, const std::vector<int>& members);
    ~Monitored();
    Monitored(const Monitored&) = delete;

   private:
    GlooWatchdog& watchdog_;
    std::list<const Monitored*>::iterator place_;
    const Operation& operation_;
    const std::vector<int>& members_;
    RunningClock::time_point deadline_;
    friend GlooWatchdog;
  };

 private:
  void Run();

  PeerWatch& watch_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;  // guards monitored_ and closing_
  std::condition_variable changed_;
  std::list<const Monitored*> monitored_;
  bool closing_ = false;
  std::thread thread_;  // the last member, because it uses all others
};

}  // namespace scalelab::trainer
