// A cluster of stand-ins for Slurm's programs in a directory of its own, first on PATH; for tests. They can
// be told to lie: slurm_standin.sh says how.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/scheduler/slurm_scheduler.h"

namespace scalelab::server {

class SlurmStandins {
 public:
  // `slots`: cores of its one node.
  explicit SlurmStandins(int slots = 2);
  ~SlurmStandins();  // kills what still runs

  // From now on, until told otherwise, this program lies. An empty lie is the truth.
  void Lie(const std::string& program, const std::string& lie);
  // Lines of `calls` that begin with this program's name.
  int Calls(const std::string& program) const;
  // Jobs that were taken, whatever became of them.
  int Jobs() const;
  // Those that have run or run.
  int Started() const;
  // The controller has lost it: it is listed no more. It must not be running.
  void Forget(const std::string& id);
  // Jobs that sbatch took and denied are listed now.
  void Appear();
  void set_next_id(int id) const { Write("next", std::to_string(id)); }
  void set_field(const std::string& id, const std::string& field, const std::string& value) const;
  void Write(const std::string& file, const std::string& text) const;
  std::string Read(const std::string& file) const;

  // What `options.now` tells.
  void Advance(absl::Duration by) { ahead_ += by; }
  absl::Time Now() const { return absl::Now() + ahead_; }

  const std::string& directory() const { return directory_; }
  SlurmSchedulerOptions& options() { return options_; }
  Scheduler& scheduler() { return *scheduler_; }
  // A scheduler that knows nothing of the one before, as after a crash of the coordinator.
  void Restart();

  JobRequest Request(const std::string& token, int ranks = 1) const;
  // Status of one job, by a Poll of its own.
  JobStatus Status(const std::string& token);

 private:
  std::string directory_, path_;
  absl::Duration ahead_;
  SlurmSchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace scalelab::server
