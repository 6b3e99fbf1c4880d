// A simulated Slurm: nodes, a queue, time limits, jobs of other users, and their faults. The real scheduler of the
// service (server/scheduler) calls its programs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/command/command_runner.h"
#include "server/scheduler/scheduler.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

// The processes of a running job.
class JobProcesses {
 public:
  virtual ~JobProcesses() = default;
  virtual void Terminate() = 0;            // SIGTERM
  virtual void Kill() = 0;                 // SIGKILL; ends them before it returns
  virtual void Suspend(bool suspend) = 0;  // SIGSTOP, SIGCONT
  virtual void CrashOne() = 0;             // one worker crashes
};

class Slurm final : public server::CommandRunner {
 public:
  // Starts the processes of a job; `ended` is called once, when all of them have ended by themselves.
  using Launch = std::function<std::unique_ptr<JobProcesses>(const server::JobRequest& request,
                                                             std::vector<std::string> nodes,
                                                             std::function<void(int status)> ended)>;
  struct Hooks {
    Launch launch;
    std::function<void()> maybe_crash;                         // called before and after each call
    std::function<void(absl::Duration)> block;                 // blocks the calling thread
    std::function<void(const server::JobRequest&)> accepting;  // checks invariants
  };

  Slurm(World& world, Hooks hooks);

  // Returns the real scheduler of the service, for one life of the service's process. This object must outlive it.
  std::unique_ptr<server::Scheduler> NewScheduler();
  // Runs one of Slurm's programs.
  absl::StatusOr<server::CommandResult> Run(const std::vector<std::string>& argv, const std::string& input,
                                            const std::vector<std::string>& variables,
                                            absl::Duration timeout) override;

  // Makes the schedulers of NewScheduler run their programs through `agent`.
  void set_agent(server::CommandRunner* agent) { agent_ = agent; }
  // Runs one of Slurm's programs in another process than that of the service: the service does not crash or block in the
  // call. `late`: the service does not wait for the program any more.
  absl::StatusOr<server::CommandResult> RunForAgent(const std::vector<std::string>& argv, bool late);

  // Returns the jobs of the service that have not ended. `late`: also those that Slurm accepted minutes after sbatch had
  // failed, which the service may not expect any more.
  std::vector<std::string> LiveJobs(bool late) const;
  int64_t calls() const { return submits_ + polls_ + cancels_ + views_; }
  int64_t submits() const { return submits_; }
  int64_t polls() const { return polls_; }
  int64_t cancels() const { return cancels_; }
  int nodes() const { return static_cast<int>(idle_.size()); }
  // Returns the jobs of the service that have never started, and that it has not tried to cancel.
  std::vector<std::string> PendingJobs() const;

 private:
  using State = server::JobStatus::State;
  struct Job {
    server::JobRequest request;
    int id = 0;
    State state = State::kPending;
    bool foreign = false;
    bool completing = false, suspended = false, forgotten = false;
    bool late = false;
    bool cancel_asked = false;
    State ends_as = State::kUnknown;
    int incarnation = 0;  // increases when the job starts, is requeued or ends
    absl::Duration started, ended;
    int exit_status = 0;
    std::vector<std::string> nodes;
    std::string node_list;  // of the last start; empty before
    std::unique_ptr<JobProcesses> processes;
  };
  using JobPointer = std::shared_ptr<Job>;

  class Scheduler;

  bool BeginCall(const std::string& program);
  bool Refuses();
  void EndCall();
  server::CommandResult Sbatch(const std::string& name);
  void Accept(const server::JobRequest& request, bool late);
  server::CommandResult Squeue(const std::string& name);
  std::string Row(const Job& job) const;
  server::CommandResult Scancel(const std::string& name, const std::set<std::string>& ids);
  std::string Sinfo() const;
  void ScheduleSoon();
  void StartJobs();
  void Start(const JobPointer& job);
  void EndBy(const JobPointer& job, State state, absl::Duration grace);
  void Complete(const JobPointer& job);
  void Requeue(const JobPointer& job);
  void Forget(const JobPointer& job);
  void AddForeignJob();
  void Misbehave(Fault fault);
  void Strike(Fault fault);
  JobPointer AnyJob(bool running);

  World& world_;
  const Hooks hooks_;
  std::map<int, JobPointer> jobs_;                      // that are listed, by id
  std::map<std::string, server::JobRequest> requests_;  // of the service, by name
  std::vector<JobPointer> order_;          // jobs that have not ended, in the order of submission
  std::map<std::string, bool> idle_;       // nodes
  std::map<std::string, int> submits_of_;  // by name
  absl::Duration away_until_ = absl::ZeroDuration();
  // Slurm refuses all jobs because of a limit until this time.
  absl::Duration limit_until_ = absl::ZeroDuration();
  int number_ = 0;
  bool scheduling_ = false, starting_ = false;
  int64_t submits_ = 0, polls_ = 0, cancels_ = 0, views_ = 0;
  std::set<std::string> cancelling_;  // names in the call of Scheduler::Cancel in progress
  std::set<std::string> cancelled_;   // names in any call of Scheduler::Cancel
  server::CommandRunner* agent_ = nullptr;
  bool for_agent_ = false, late_ = false;  // of RunForAgent
};

}  // namespace scalelab::simulation
