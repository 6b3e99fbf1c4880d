// What squeue and sacct print, and what it means. Pure. Everything read here is foreign text: what does not
// have the expected form is counted and never acted on.
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

// One job of ours.
struct QueueRow {
  std::string id;
  std::string name;    // the token
  std::string word;    // Slurm's state, for example "RUNNING"
  std::string by;      // sacct only: uid of whoever cancelled it
  std::string reason;  // Slurm's code, "None" left out
  int exit_code = 0;
  int signal = 0;
  absl::Time end = absl::InfiniteFuture();          // running: when its limit ends it; over: when it ended
  absl::Duration used = absl::ZeroDuration();       // time it has run
  absl::Duration limit = absl::InfiniteDuration();  // its time limit
  std::string nodes;                                // empty: it never began
};

struct Queue {
  std::map<std::string, std::vector<QueueRow>> jobs;  // by name, in the order of their ids
  int malformed = 0;                                  // lines that are no row
  std::string first_malformed;                        // the first of them, made harmless
  bool cut = false;                                   // the last line has no end: the answer is incomplete
  std::string text;                                   // of the malformed lines

  // Some line that could not be read speaks of this name: nothing may be concluded from its absence.
  bool Mentions(const std::string& name) const { return text.find(name) != std::string::npos; }
};

// The columns to ask for, in the order ParseQueue expects; times as seconds since 1970 (SLURM_TIME_FORMAT).
inline constexpr absl::string_view kSqueueColumns =
    "JobID:0|,UserID:0|,State:0|,Reason:0|,exit_code:0|,EndTime:0|,TimeUsed:0|,TimeLimit:0|,NodeList:0|,Name:"
    "0";
inline constexpr absl::string_view kSacctColumns =
    "JobIDRaw,UID,State,Reason,ExitCode,End,Elapsed,Timelimit,NodeList,JobName";

// Rows of other users are left out.
Queue ParseQueue(absl::string_view text, uid_t uid);

// sbatch --parsable: "123" or "123;cluster" on its last line.
std::optional<std::string> ParseSubmitted(absl::string_view text);

// "1-02:03:04", "02:03:04", "03:04"; infinite for "UNLIMITED" and its like; nothing for anything else.
std::optional<absl::Duration> ParseSlurmDuration(absl::string_view text);

// Names that may stand in a command line and a job name: letters, digits, '-' and '_', at most 64.
bool IsToken(absl::string_view text);

// Printable ASCII of at most `most` characters, anything else replaced.
std::string Harmless(absl::string_view text, size_t most = 200);

// The row that counts when several jobs have one token, which happens when Slurm took a job although it
// seemed that it did not: the one that runs, else one that has run, else the oldest that waits, else the
// oldest. `jobs` must not be empty.
const QueueRow& Chosen(const std::vector<QueueRow>& jobs);

// Rows that may still do something.
bool IsLive(const QueueRow& row);

// Who ended a job that was cancelled, as far as this process knows.
enum class Canceller { kUnknown, kUs, kSomebodyElse };

// Nothing when the state is a word this version does not know.
std::optional<JobStatus> StatusOf(const QueueRow& row, Canceller canceller = Canceller::kUnknown);

// Slurm's reason for a pending job in words, the code kept in brackets: "waits for free nodes (Resources)".
std::string PendingReason(absl::string_view reason);

}  // namespace scalelab::server
