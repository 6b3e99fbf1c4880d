// A scheduler that runs jobs through Slurm's programs: sbatch, squeue, scancel, sinfo and scontrol, and sacct
// where there is an accounting database. Supports Slurm 22.05 and later. docs/operators/slurm.md has the
// table of states.
//
// A job is identified by its name (the token) and its user, never by its id: a controller that crashes can
// forget a job that it has acknowledged, and reuse the id.
//
// At most one job of a token runs at a time:
// - Before each sbatch, Submit looks the token up with squeue and adopts a job that it finds.
// - After an sbatch with an unknown outcome, Submit retries only when the job is certainly gone: two answers
//   of squeue did not list it, at least `settle` apart and with no failed query between them. Poll needs the
//   same two answers before it returns kUnknown for a job that was listed.
// - If a lost job appears even later, --dependency=singleton lets only one job of a name run at a time, and
//   Poll cancels the other one.
//
// Until a job is certainly gone, Poll returns its last known status, and the reason describes what
// Poll waits for.
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
#include "server/time/clock.h"

namespace scalelab::server {

class CommandRunner;

struct SlurmSchedulerOptions {
  SlurmScriptOptions script;
  // Time without a job in the list after which it is gone. It must be longer than a message to the controller
  // can be in flight; MessageTimeout is 10 s by default. If twice the site's MessageTimeout is longer, that
  // is used instead.
  absl::Duration settle = absl::Seconds(30);
  // Timeout of each of Slurm's programs. It is longer than the time for which they try to reach a controller
  // (about 10 s).
  absl::Duration command_timeout = absl::Seconds(30);
  // Time limit of operations on files in `script.runs_dir`. After this time Submit returns UNAVAILABLE, so that a file
  // server that does not respond does not delay the jobs of other studies.
  absl::Duration file_timeout = absl::Seconds(5);
  // Poll refreshes the output of sinfo that capacity() uses when it is older.
  absl::Duration view_age = absl::Minutes(10);
  // Measures the time between events. Its epoch is arbitrary, and setting the wall clock must not change it.
  std::function<absl::Time()> now = [] { return absl::UnixEpoch() + Clock::System().Steady(); };
  // The time of day, which is compared with the times that Slurm reports.
  std::function<absl::Time()> wall = absl::Now;
  // Runs Slurm's programs; must outlive the scheduler. Null: the programs of this machine.
  CommandRunner* runner = nullptr;
};

// Returns FAILED_PRECONDITION if one of Slurm's programs is not installed; the message names it.
absl::Status CheckSlurmInstalled();

// Returns FAILED_PRECONDITION if there is no `runner` and Slurm's programs are not installed. A controller that does not answer causes
// only a log message; jobs are submitted when it answers again.
//
// capacity(), Script() and View() are safe to call from any thread; capacity() and Script() never block.
absl::StatusOr<std::unique_ptr<Scheduler>> NewSlurmScheduler(SlurmSchedulerOptions options);

}  // namespace scalelab::server
