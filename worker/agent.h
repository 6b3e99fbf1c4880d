// The worker's loop: tells the coordinator what is, hears what should be, and makes it so.
//
// Everything happens on the event loop's thread. A Synchronize is always under way or due: it waits at the
// coordinator until the desired state changes, and is given up and sent anew when something changes here.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/attempt.h"
#include "worker/coordinator_client.h"
#include "worker/process/event_loop.h"
#include "worker/worker_state.h"

namespace scalelab::worker {

struct AgentOptions {
  int node_index = 0;                               // place of the node in the allocation
  absl::Duration give_up_after = absl::Hours(1);    // without a word from the coordinator
  absl::Duration leave_within = absl::Seconds(10);  // after SIGTERM, once no process is left
};

class Agent {
 public:
  enum class Exit {
    kDone,    // the coordinator has nothing more to do here, or SIGTERM
    kDenied,  // the coordinator does not know this allocation (any more)
    kGaveUp,  // not heard of for too long
  };

  // `exited` is called once, when no process is left; the agent does nothing from then on.
  Agent(EventLoop& loop, CoordinatorClient& client, const AttemptHost& host, AgentOptions options,
        std::function<void(Exit)> exited);
  ~Agent();

  void Start();
  // SIGTERM: takes no more attempts, stops those it has, reports, exits.
  void Leave();
  // Something that is reported has changed (the node's software): report it soon.
  void Refresh();

 private:
  void ScheduleSync(absl::Duration within);
  void Sync();
  v1::SynchronizeRequest Request() const;
  void OnSynchronized(uint64_t number, absl::StatusOr<v1::SynchronizeResponse> response);
  void OnSilence(const absl::Status& status);
  void Apply(const v1::SynchronizeResponse& response);
  void Do(const Action& action);
  void OnChanged(const std::string& token);
  bool AllEnded() const;
  void Quit(Exit exit);  // stops everything and exits without another word
  void ExitIfQuiet();

  EventLoop& loop_;
  CoordinatorClient& client_;
  const AttemptHost& host_;
  const AgentOptions options_;
  const std::string instance_;
  std::function<void(Exit)> exited_;

  std::map<std::string, std::unique_ptr<Attempt>> attempts_;  // by token
  int64_t generation_ = 0;
  bool terminate_ = false;
  bool leaving_ = false;
  bool quitting_ = false;
  Exit exit_ = Exit::kDone;

  uint64_t sync_number_ = 0;  // of the latest call; answers to older ones are of no interest
  bool sync_in_flight_ = false;
  bool sync_said_goodbye_ = false;  // it said: leaving, and everything has ended
  absl::Time sync_sent_;
  EventLoop::TimerId sync_timer_ = 0, leave_timer_ = 0;
  absl::Time sync_due_;
  absl::Time last_contact_;
  int failures_ = 0;
  std::shared_ptr<bool> alive_;  // guards answers that come after the agent
};

}  // namespace scalelab::worker
