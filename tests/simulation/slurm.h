// A simulated Slurm: nodes, a queue, time limits, jobs of other users, and what can go wrong with them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

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

class Slurm final : public server::Scheduler {
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

  std::string name() const override { return "slurm"; }
  server::Capacity capacity() const override { return {}; }
  absl::StatusOr<std::string> Submit(const server::JobRequest& request) override;
  std::string Script(const server::JobRequest&) const override { return ""; }
  absl::StatusOr<std::vector<server::JobStatus>> Poll(const std::vector<std::string>& tokens) override;
  absl::StatusOr<server::ClusterView> View() override;
  absl::Status Cancel(const std::vector<std::string>& tokens) override;

  // Returns the jobs of the service that have not ended.
  std::vector<std::string> LiveJobs() const;
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
    std::string id;
    State state = State::kPending;
    bool foreign = false;
    bool completing = false, suspended = false, forgotten = false;
    bool cancel_asked = false, cancelled_by_service = false, cancelled_outside = false;
    State ends_as = State::kUnknown;
    int incarnation = 0;  // grows when the job starts, is requeued or ends
    absl::Duration started;
    std::vector<std::string> nodes;
    std::unique_ptr<JobProcesses> processes;
  };
  using JobPointer = std::shared_ptr<Job>;

  absl::Status BeginCall(const char* what);
  bool Refuses();
  void EndCall();
  server::JobStatus StatusOf(const std::string& token) const;
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
  std::map<std::string, JobPointer> jobs_;  // that are listed, by name
  std::vector<JobPointer> order_;           // of submission; not ended
  std::map<std::string, bool> idle_;        // nodes
  std::map<std::string, int> submits_of_;   // by name
  absl::Duration away_until_ = absl::ZeroDuration();
  absl::Duration limit_until_ = absl::ZeroDuration();  // until when it refuses all jobs for a limit
  int number_ = 0;
  bool scheduling_ = false;
  int64_t submits_ = 0, polls_ = 0, cancels_ = 0, views_ = 0;
};

}  // namespace scalelab::simulation
