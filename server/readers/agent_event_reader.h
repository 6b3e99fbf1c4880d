// Reads the event files of attempts that ran under the accounts of their users, through the users' agents.
#pragma once

#include <string>

#include "server/core/event_reader.h"
#include "server/rpc/call_pool.h"
#include "server/scheduler/agent/agent_hub.h"

namespace scalelab::server {

// Copies the unread parts of the event files into a folder of this process, and reads the copies.
class AgentEventReader final : public EventReader {
 public:
  // `runs_dir`: the directory of the runs of all users. `spool`: a folder of this process, emptied at the start. `here`
  // reads attempts that ran under the account of this process. `hub` and `here` must outlive the reader.
  AgentEventReader(AgentHub& hub, std::string runs_dir, std::string spool, EventReader& here);

  void Read(EventRequest request, Done done) override;

  // Calls CallPool::Stop. Stop the hub first, so that no thread waits for an agent.
  bool Stop(absl::Duration grace) { return pool_.Stop(grace); }

 private:
  AgentHub& hub_;
  const std::string runs_dir_;
  const std::string spool_;
  EventReader& here_;
  CallPool pool_;
};

}  // namespace scalelab::server
