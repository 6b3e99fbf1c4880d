// A fake Slurm cluster for tests: fakes of Slurm's programs in a temporary directory, first on PATH. They can
// simulate failures; slurm_standin.sh documents them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/scheduler/slurm_scheduler.h"

namespace scalelab::server {

class SlurmStandins {
 public:
  // `slots` is the number of cores of its one node.
  explicit SlurmStandins(int slots = 2);
  ~SlurmStandins();  // kills all remaining jobs

  // Sets the failure `lie` of `program` until the next call; an empty `lie` means correct answers.
  void Lie(const std::string& program, const std::string& lie);
  // Returns the number of calls of `program`.
  int Calls(const std::string& program) const;
  // Returns the number of accepted jobs, in any state.
  int Jobs() const;
  // Returns the number of jobs that run or have run.
  int Started() const;
  // Removes a job from the controller, so that it is no longer listed. It must not be running.
  void Forget(const std::string& id);
  // Makes the jobs appear that sbatch accepted although it reported a failure.
  void Appear();
  void set_next_id(int id) const { Write("next", std::to_string(id)); }
  void set_field(const std::string& id, const std::string& field, const std::string& value) const;
  void Write(const std::string& file, const std::string& text) const;
  std::string Read(const std::string& file) const;

  // The clock of `options.now`.
  void Advance(absl::Duration by) { ahead_ += by; }
  absl::Time Now() const { return absl::Now() + ahead_; }

  const std::string& directory() const { return directory_; }
  SlurmSchedulerOptions& options() { return options_; }
  Scheduler& scheduler() { return *scheduler_; }
  // Makes a new scheduler without the old one's state, as after a crash of the coordinator.
  void Restart();

  JobRequest Request(const std::string& token, int ranks = 1) const;
  // Returns the status of one job, from a separate Poll.
  JobStatus Status(const std::string& token);

 private:
  std::string directory_, path_;
  absl::Duration ahead_;
  SlurmSchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace scalelab::server
