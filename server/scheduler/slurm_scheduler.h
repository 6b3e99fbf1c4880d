// Jobs through Slurm's own programs (sbatch, squeue, scancel, sinfo, scontrol; sacct where it works): 22.05
// and later, with or without slurmdbd. docs/operators/slurm.md has the table of states.
//
// A job's identity is its name, the token, and its user: ids are never trusted, because a controller that
// crashes can forget a job it has acknowledged and give the id to another one.
//
// One token, one job that runs. Before each sbatch the token is looked up and adopted. When it is not known
// whether an sbatch was heard, no second one is made before two answers of Slurm, at least `settle` apart and
// with no failure between them, have both not had the job; the same two answers it takes to call a job that
// was there kUnknown. Should a lost job appear even later, --dependency=singleton lets only one job of a name
// run at a time, and Poll ends the other.
//
// Until it is certain, Poll repeats what was known last, and says in the reason what it waits for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/slurm_script.h"

namespace scalelab::server {

struct SlurmSchedulerOptions {
  SlurmScriptOptions script;
  // Longer than a message can be under way: MessageTimeout is 10 s by default. Where the site's is longer,
  // twice that is taken.
  absl::Duration settle = absl::Seconds(30);
  // After this Slurm's program is killed. Longer than it tries by itself to reach a controller (about 10 s).
  absl::Duration command_deadline = absl::Seconds(30);
  // How old what sinfo said may be when capacity() is asked and Poll comes by.
  absl::Duration view_age = absl::Minutes(10);
  std::function<absl::Time()> now = absl::Now;
};

// FAILED_PRECONDITION: Slurm's programs are not installed. That its controller does not answer is no error:
// it is said in the log, and all goes on when it is back.
//
// Threads: capacity(), Script() and View() may be called from any; capacity() and Script() never block.
absl::StatusOr<std::unique_ptr<Scheduler>> NewSlurmScheduler(SlurmSchedulerOptions options);

}  // namespace scalelab::server
