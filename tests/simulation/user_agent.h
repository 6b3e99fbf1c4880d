// The agent of a user between the coordinator and Slurm, for simulations of `jobs_run_as: user`. The checks and the execution of
// commands (agent/executor.h) and the messages (agent_messages.h) are real. The stream, the hub of the coordinator and the
// agent's process are simulated. They behave as AgentHub and agent/serve.h describe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/executor.h"
#include "scalelab/v1/agent.pb.h"
#include "server/command/command_runner.h"
#include "tests/simulation/process.h"
#include "tests/simulation/slurm.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

class UserAgent final : public server::CommandRunner {
 public:
  UserAgent(World& world, Process& process, Slurm& slurm);

  // Called by the scheduler in the coordinator's process. Sends the command to the agent and lets virtual time pass until
  // the answer arrives, as AgentHub::Ask. The coordinator runs sinfo and scontrol itself.
  absl::StatusOr<server::CommandResult> Run(const std::vector<std::string>& argv, const std::string& input,
                                            const std::vector<std::string>& variables,
                                            absl::Duration timeout) override;

 private:
  // Runs the programs of the agent.
  class Programs final : public server::CommandRunner {
   public:
    explicit Programs(Slurm& slurm) : slurm_(slurm) {}
    absl::StatusOr<server::CommandResult> Run(const std::vector<std::string>& argv, const std::string&,
                                              const std::vector<std::string>&, absl::Duration) override {
      return slurm_.RunForAgent(argv, late);
    }
    bool late = false;  // whether the coordinator does not wait for the program any more

   private:
    Slurm& slurm_;
  };
  // A request that the coordinator has sent.
  struct Call {
    int connection = 0;
    int agent_life = 0;
    bool over = false;  // it is answered or lost
    absl::StatusOr<server::CommandResult> result = server::CommandResult();
  };
  using CallPointer = std::shared_ptr<Call>;

  bool Connected() const;
  // Returns whether the coordinator waits for the answer of this call.
  bool Waits(const Call& call) const;
  void ConnectSoon();
  void Connect();
  // Ends the connection of the coordinator. It cannot know what has become of a request in flight.
  void Disconnect(const std::string& why);
  void Receive(const CallPointer& call, const v1::ServeResponse& request);
  void Execute(const CallPointer& call, const v1::ServeResponse& request);
  void Answer(const CallPointer& call, const absl::StatusOr<server::CommandResult>& result);
  absl::Duration Delay();
  void Misbehave(Fault fault);
  void Strike(Fault fault);

  World& world_;
  Process& process_;
  Slurm& slurm_;
  Programs programs_;
  const agent::Executor executor_;
  const bool
      private_jobs_;    // whether squeue shows users only their own jobs, so that the agent runs squeue too
  int connection_ = 0;  // number of the coordinator's connection; 0: none
  int connections_ = 0;
  int coordinator_life_ = 0;  // the process of the coordinator that accepted the connection
  int agent_life_ = 1;        // increases when the agent's process crashes
  bool running_ = true;       // whether the agent's process exists
  bool long_away_ = false;    // whether it is suspended for so long that it drops the requests that wait
  int64_t last_id_ = 0;
  CallPointer waiting_;  // the last call
  absl::Duration away_until_ = absl::ZeroDuration(), cut_until_ = absl::ZeroDuration();
};

}  // namespace scalelab::simulation
