// Parses and interprets the output of squeue and sacct. The functions are pure. Malformed lines are counted
// and otherwise ignored.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// One job of this user.
struct QueueRow {
  std::string id;
  std::string name;          // the token
  std::string slurm_state;   // for example "RUNNING"
  std::string cancelled_by;  // uid; only from sacct
  bool preempted = false;    // Slurm has begun to preempt it; only from squeue
  std::string reason;        // Slurm's reason code; empty for "None"
  int exit_code = 0;
  int signal = 0;
  absl::Time end = absl::InfiniteFuture();          // running: when its limit ends it; ended: when it ended
  absl::Duration used = absl::ZeroDuration();       // run time so far
  absl::Duration limit = absl::InfiniteDuration();  // its time limit
  std::string nodes;                                // empty: it never started
};

struct Queue {
  std::map<std::string, std::vector<QueueRow>> jobs;  // by name, sorted by id
  int valid = 0;                                      // number of well-formed lines, those of other users too
  int malformed = 0;                                  // number of malformed lines
  std::string first_malformed;                        // the first of them, made printable
  bool incomplete = false;      // the last line has no newline, so the output is incomplete
  std::string malformed_lines;  // all of them

  // Returns whether a malformed line contains this name. If so, a missing row does not mean that the
  // job is gone.
  bool Mentions(const std::string& name) const { return malformed_lines.find(name) != std::string::npos; }
};

// The columns that ParseQueue expects, in order. Times are seconds since 1970 (SLURM_TIME_FORMAT). The state is followed by
// the time of the preemption, or by "N/A".
inline constexpr absl::string_view kSqueueColumns =
    "JobID:0|,UserID:0|,State:0 "
    ",PreemptTime:0|,Reason:0|,exit_code:0|,EndTime:0|,TimeUsed:0|,TimeLimit:0|,NodeList:0|,Name:"
    "0";
inline constexpr absl::string_view kSacctColumns =
    "JobIDRaw,UID,State,Reason,ExitCode,End,Elapsed,Timelimit,NodeList,JobName";

// Ignores rows of other users than `uid`.
Queue ParseQueue(absl::string_view text, uid_t uid);

// Returns the job id that sbatch --parsable prints in its last line: "123" or "123;cluster".
std::optional<std::string> ParseSubmitted(absl::string_view text);

// Parses "1-02:03:04", "02:03:04" and "03:04"; "UNLIMITED" and its synonyms are infinite. Returns nothing
// for other text.
std::optional<absl::Duration> ParseSlurmDuration(absl::string_view text);

// Returns whether `text` is safe in a command line and as a job name: at most 64 letters, digits,
// '-' and '_'.
bool IsToken(absl::string_view text);

// Returns at most `limit` characters of `text`, with everything but printable ASCII replaced by '?'.
std::string Printable(absl::string_view text, size_t limit = 200);

// Chooses among several jobs with one token, which exist when Slurm accepted a job although sbatch failed.
// Chooses the running job if there is one, then a job that has run, then the oldest pending job, then the
// oldest job. `jobs` must not be empty.
const QueueRow& Choose(const std::vector<QueueRow>& jobs);

// Returns whether a job is pending or running.
bool IsLive(const QueueRow& row);

// Who cancelled a job, if this process can determine it.
enum class Canceller { kUnknown, kUs, kSomebodyElse };

// Interprets a row. Returns nothing when its Slurm state is unknown.
std::optional<JobStatus> StatusOf(const QueueRow& row, Canceller canceller = Canceller::kUnknown);

// Explains Slurm's reason code for a pending job: "waits for free nodes (Resources)".
std::string PendingReason(absl::string_view reason);

}  // namespace scalelab::server
