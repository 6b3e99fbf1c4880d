// The worker's reconciliation loop: reports the node's state to the coordinator, receives the desired state,
// and acts on the difference.
//
// The coordinator may assign attempts in advance. The agent begins each of them as soon as no process of
// earlier attempts is left, without a call in between.
//
// While no attempt runs, the agent calibrates the node, if the study has a noise guard and the last calibration is not
// recent; attempts wait until it ends.
//
// All methods and callbacks run on the event loop's thread. One Synchronize call is always in flight or
// scheduled. The coordinator answers it when the desired state changes; the agent cancels it and sends a new
// one when the node's state changes.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/attempt.h"
#include "worker/coordinator_client.h"
#include "worker/noise/calibrator.h"
#include "worker/process/event_loop.h"
#include "worker/worker_state.h"

namespace scalelab::worker {

struct AgentOptions {
  int node_index = 0;  // index of the node in the allocation, from 0
  // Time without an answer from the coordinator and without a running attempt, after which the agent exits. While an
  // attempt runs, the agent waits for the coordinator without a limit: training must not end because of it.
  absl::Duration give_up_after = absl::Hours(1);
  // Time limit for the final report, after SIGTERM and the end of the last process.
  absl::Duration leave_within = absl::Seconds(10);
};

class Agent {
 public:
  enum class Exit {
    kDone,    // the coordinator has no more work for this node, or SIGTERM
    kDenied,  // the coordinator rejected the allocation's credentials
    kGaveUp,  // no answer from the coordinator and no running attempt for `give_up_after`
  };

  // `exited` is called once, when no process is left; the agent is inactive from then on. `loop`, `client`
  // and `host` must outlive the agent.
  Agent(EventLoop& loop, CoordinatorClient& client, const AttemptHost& host, AgentOptions options,
        std::function<void(Exit)> exited);
  ~Agent();

  // Sends the first Synchronize.
  void Start();
  // Handles SIGTERM: accepts no new attempts, stops the current ones, reports their ends and exits.
  void Leave();
  // Sends a new report soon, because its content (the node's software) has changed.
  void Refresh();

 private:
  void ScheduleSync(absl::Duration within);
  void Sync();
  v1::SynchronizeRequest Request() const;
  void OnSynchronized(uint64_t number, absl::StatusOr<v1::SynchronizeResponse> response);
  void OnSilence(const absl::Status& status);
  void Apply(const v1::SynchronizeResponse& response);
  void Do(const Action& action);
  void Begin(Attempt& attempt);
  void BeginNow(Attempt& attempt);
  bool NeedsCalibration(const Attempt& attempt) const;
  void Calibrate(const Attempt& attempt);
  void OnCalibrated();
  bool AnyBusy() const;  // some attempt has begun and may have processes
  void Stop(Attempt& attempt, absl::Duration grace);
  void BeginNext();
  void PrepareNext();
  void OnChanged(const std::string& token);
  bool AllEnded() const;
  bool AnyRunning() const;  // some attempt may have processes
  void Quit(Exit exit);     // stops everything, sends nothing more, exits
  void ExitIfQuiet();

  EventLoop& loop_;
  CoordinatorClient& client_;
  const AttemptHost& host_;
  const AgentOptions options_;
  const std::string instance_;
  std::function<void(Exit)> exited_;

  std::map<std::string, std::unique_ptr<Attempt>> attempts_;  // by token
  std::deque<std::string> turns_;  // tokens of attempts that begin one after another, in this order
  Calibrator calibrator_;
  std::vector<std::string> after_calibration_;  // tokens of attempts that begin when the calibration ends
  int64_t generation_ = 0;
  bool terminate_ = false;
  bool leaving_ = false;
  bool quitting_ = false;
  Exit exit_ = Exit::kDone;

  uint64_t sync_number_ = 0;  // number of the latest call; answers to older calls are ignored
  bool sync_in_flight_ = false;
  bool sync_said_goodbye_ = false;  // the call in flight reports: leaving, and all attempts have ended
  absl::Duration sync_sent_;        // EventLoop::Now
  EventLoop::TimerId sync_timer_ = 0, leave_timer_ = 0, prepare_timer_ = 0;
  absl::Duration sync_due_;    // EventLoop::Now
  absl::Duration idle_since_;  // EventLoop::Now of the last answer, or later if an attempt was running
  int failures_ = 0;
  std::shared_ptr<bool> alive_;  // expires with the agent: late answers check it
};

}  // namespace scalelab::worker
