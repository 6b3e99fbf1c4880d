// Rows of the database. Times are microseconds since the Unix epoch, 0 = not yet. Enumerations are stored as
// these integers, which equal the API's (scalelab/v1); server/ checks that.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace scalelab::db {

using Micros = int64_t;

enum class StudyState : int { kQueued = 1, kRunning = 2, kSucceeded = 3, kFailed = 4, kCancelled = 5 };
enum class RunState : int {
  kQueued = 1,
  kRunning = 2,
  kSucceeded = 3,
  kFailed = 4,
  kCancelled = 5,
  kSkipped = 6
};
enum class AttemptState : int {
  kAssigned = 1,
  kRunning = 2,
  kStopping = 3,
  kSucceeded = 4,
  kFailed = 5,
  kCancelled = 6
};
enum class AllocationState : int { kIntended = 1, kPending = 2, kRunning = 3, kReleasing = 4, kEnded = 5 };
enum class Cause : int {
  kNone = 0,
  kTrainerError = 1,
  kRankKilled = 2,
  kWorkerLost = 3,
  kOutOfMemory = 4,
  kTimeout = 5,
  kNodeFail = 6,
  kPreempted = 7,
  kBootFail = 8,
  kDeadline = 9,
  kAllocationCancelled = 10,
  kNoFinish = 11,
  kParametersDiffer = 12,
  kLaunchError = 13,
  kStorageError = 14,
  kNoisy = 15
};

// The largest member of each enumeration, to recognise damaged rows.
constexpr StudyState LastOf(StudyState) { return StudyState::kCancelled; }
constexpr RunState LastOf(RunState) { return RunState::kSkipped; }
constexpr AttemptState LastOf(AttemptState) { return AttemptState::kCancelled; }
constexpr AllocationState LastOf(AllocationState) { return AllocationState::kEnded; }
constexpr Cause LastOf(Cause) { return Cause::kNoisy; }

inline bool IsFinal(StudyState s) { return s >= StudyState::kSucceeded; }
inline bool IsFinal(RunState s) { return s >= RunState::kSucceeded; }
inline bool IsFinal(AttemptState s) { return s >= AttemptState::kSucceeded; }

struct StudyRow {
  int64_t id = 0;
  std::string name;  // display name
  std::string owner;
  std::string request_id;  // unique per owner when not empty
  std::string spec;        // StudySpec as JSON, as submitted
  StudyState state = StudyState::kQueued;
  int priority = 0;
  int64_t runs = 0;  // number of runs
  Micros created = 0, started = 0, finished = 0;
  bool cancel_requested = false;
  std::string pause_reason;  // why no attempt begins; empty: it is not paused
  bool is_private = false;   // only its owner and admins may see it
  bool held = false;         // a user holds the study: no attempt begins
};

// The text of the study file that a study was submitted with. A study whose text is not known has no row.
struct StudyFileRow {
  int64_t study_id = 0;
  std::string text;
};

struct CellRow {
  int64_t id = 0;
  int64_t study_id = 0;
  int position = 0;  // index in file order
  std::string engine, model, precision, backend;
  int ranks = 0;
  int global_batch = 0;
  // Numbers of CellValueRows as JSON arrays: `key` for the values of the axes, `spec` for the parameters in
  // which the cell differs from number 0. Databases from before schema 5 have whole JSON objects.
  std::string key = "[]", spec = "[]";
  bool excluded = false;
};

// A value of a parameter that cells of a study have. The cells refer to it by its number.
struct CellValueRow {
  int64_t study_id = 0;
  // Numbers of values start at 1. Number 0 is a JSON object with the parameters of all cells, except those
  // for which a cell has numbers.
  int number = 0;
  std::string name;   // name of the parameter; empty for number 0
  std::string value;  // JSON
};

struct RunRow {
  int64_t id = 0;
  int64_t study_id = 0;
  int64_t cell_id = 0;
  int repeat = 0;
  int position = 0;  // index in the order of execution within the study
  RunState state = RunState::kQueued;
  Cause cause = Cause::kNone;
  int attempts = 0;   // number of attempts made so far
  int uncounted = 0;  // number of attempts that do not count for the limit of retries
  std::string message;
  Micros started = 0, finished = 0;
};

struct AttemptRow {
  int64_t id = 0;
  int64_t run_id = 0;
  int number = 0;     // number within the run, from 1
  std::string token;  // UUID, unique
  int64_t allocation_id = 0;
  AttemptState state = AttemptState::kAssigned;
  Cause cause = Cause::kNone;
  std::string message;
  std::string nodes;  // names, separated by commas
  std::string directory;
  std::optional<int> exit_status;
  std::string parameter_hash;
  Micros assigned = 0, started = 0, finished = 0;
  // The step of the checkpoint from which the attempt continued, and the step of its last
  // checkpoint; 0: none.
  int64_t resumed_step = 0, checkpoint_step = 0;
  // Results of an attempt that was repeated because it was noisy, in the units of RunSummary. The results of the
  // attempt that counts are in RunSummary only.
  std::optional<double> throughput, epoch_seconds;
};

// Name of the directory of a run's checkpoints, next to those of its attempts.
inline constexpr char kCheckpointsName[] = "checkpoints";

struct AllocationRow {
  int64_t id = 0;
  std::string token;  // UUID: the scheduler's job name
  int64_t study_id = 0;
  int64_t run_id = 0;  // with AllocationMode PER_RUN: the run that the allocation serves; 0 for a group
  AllocationState state = AllocationState::kIntended;
  std::string external_id;
  int nodes = 0, ranks_per_node = 0, cpus_per_rank = 0, gpus_per_rank = 0;
  std::string reason;  // why it is pending, or how it ended
  Micros created = 0, started = 0, ended = 0;
  // The user who is charged for the allocation. A copy, because the study may be deleted while the job runs.
  std::string owner, partition;
  Micros charged_until = 0;  // UsageRow contains the use up to this time; 0: none of it
  Micros held = 0;           // the duration that UsageRow contains
  Micros cancelled = 0;      // when the coordinator first cancelled its job; 0: it has not cancelled it
};

// What a user has used: the parts of allocations until their charged_until. Kept when studies are deleted.
struct UsageRow {
  std::string owner;
  Micros at = 0;  // time to which the decayed numbers apply
  double decayed_node_seconds = 0, decayed_gpu_seconds = 0;
  double node_seconds = 0, gpu_seconds = 0;  // without decay
};

// GPU-seconds that a user has used in a partition in one hour.
struct UsageHourRow {
  std::string owner, partition;
  int64_t hour = 0;  // number of hours since 1970
  double gpu_seconds = 0;
};

inline constexpr Micros kHour = 3'600'000'000;
// Number of hours whose UsageHourRow is kept: a week and a day.
inline constexpr int64_t kUsageHours = 8 * 24;

// Whether the coordinator is being drained.
struct DrainRow {
  int64_t id = 1;  // the only row
  bool on = false;
  std::string reason;
  Micros since = 0;
};

// Values of one metric of one rank as columns; the vectors have equal lengths. Values may be NaN.
struct PointColumn {
  std::string key;
  std::vector<int64_t> line, step;
  std::vector<double> time, value;
};

// A part of one rank's event file. The store adds the points and moves the stream from `begin_position` to
// `end_position` in one transaction.
struct StreamAppend {
  int64_t attempt_id = 0;
  int rank = 0;
  int64_t begin_position = 0, end_position = 0;  // bytes
  int64_t begin_line = 0, end_line = 0;
  int64_t malformed = 0;        // number of malformed lines in this part
  std::string first_malformed;  // "line 17: not JSON"; the stream keeps its first one
  std::vector<PointColumn> columns;
  bool finished = false;                  // this part contains the rank's finish event
  std::string parameter_hash;             // from the finish event
  std::string error_kind, error_message;  // from the error event
};

// The durable state of one rank's stream.
struct StreamRow {
  int64_t attempt_id = 0;
  int rank = 0;
  int64_t position = 0;
  int64_t line = 0;
  int64_t malformed = 0;
  std::string first_malformed;
  bool finished = false;
  std::string parameter_hash;
  std::string error_kind, error_message;
};

// Epoch metrics of one rank, in a plain table for pandas and sqlite3.
struct EpochRow {
  int64_t attempt_id = 0;
  int rank = 0;
  int epoch = 0;
  double time = 0;
  std::map<std::string, double> metrics;  // stored as a JSON object
};

// Means over the measured window of a run that succeeded, as its ranks reported them. A curve explains its
// points with them. They have their own table, so that curves without factors do not read them.
struct RunTimes {
  // Seconds of a step, and how many of them the rank waits for gradients and for the batch.
  struct Rank {
    double step = 0, exposed = 0, data = 0;
    bool operator==(const Rank&) const = default;
  };
  int64_t run_id = 0;
  int64_t attempt_id = 0;
  std::string nodes;       // names, separated by commas
  int ranks_per_node = 0;  // ranks are placed on the nodes in order; 0: not known
  std::vector<Rank> ranks;
  std::optional<double> comm_total;  // seconds per step with communication in progress, mean over ranks
  std::optional<double> rank_norm,
      mean_norm;  // squared norms: of a rank's gradient (mean over ranks), of their mean
  std::optional<double> samples_to_accuracy;  // samples over all ranks until target_accuracy was reached

  bool empty() const { return ranks.empty() && !comm_total && !rank_norm && !samples_to_accuracy; }
};

// Results of a run that succeeded. Absent numbers are NULL. Units: samples/s, seconds, bytes, shares 0 to 1.
struct RunSummary {
  int64_t run_id = 0;
  int64_t attempt_id = 0;
  std::optional<double> throughput, throughput_mean, epoch_seconds, step_seconds, comm_share, peak_memory,
      device_memory, accuracy, train_loss, time_to_accuracy, straggler_skew, cpu_utilisation;
  int64_t steps = 0;
  std::string fingerprint;                // hash of hardware and software
  std::optional<double> reported_step;    // median of the steps that rank 0 reported, in seconds
  int64_t nodes_hash = 0;                 // hash of the names of the attempt's nodes; 0: unknown
  std::map<std::string, double> metrics;  // all metrics of the ranks' finish events, as a JSON object
  RunTimes times;                         // only for writing; its ids are not used
};

// A notification, pending or sent.
struct NoticeRow {
  enum class State : int { kPending = 1, kSent = 2, kGivenUp = 3 };
  int64_t id = 0;  // the store chooses it
  // Unique: names the study, the occasion and the channel. Receivers detect a duplicate notification
  // by this key.
  std::string key;
  int64_t study_id = 0;
  std::string channel;  // "mail", "webhook" or "command"
  std::string target;   // address, URL or name of the command
  std::string payload;  // JSON
  State state = State::kPending;
  int attempts = 0;             // number of times that sending failed
  std::string error;            // error of the last attempt to send
  Micros created = 0, due = 0;  // due: time of the next attempt to send
  Micros ended = 0;             // when it was sent or given up
};
constexpr NoticeRow::State LastOf(NoticeRow::State) { return NoticeRow::State::kGivenUp; }

// Hardware and software of an attempt's node as JSON; one row per attempt.
struct ProvenanceRow {
  int64_t attempt_id = 0;
  std::string json;
};

// One run of a cell with its results: the input of a curve.
struct CurveRow {
  int64_t run_id = 0, cell_id = 0;
  int repeat = 0;
  RunState state = RunState::kQueued;
  Cause cause = Cause::kNone;
  int64_t attempt_id = 0;  // the attempt that produced the results; 0: no results
  std::optional<double> throughput, epoch_seconds, comm_share, peak_memory, accuracy, train_loss,
      time_to_accuracy;
  std::string fingerprint;
  Micros started = 0, finished = 0;  // as in RunRow
  int attempts = 1;
  std::optional<double> reported_step;  // as in RunSummary
  int64_t nodes_hash = 0;
  std::string message;  // as in RunRow: for a run that succeeded, which values were refused and why
  // Numbers of attempts of a run that succeeded, 0 for other runs. The remaining attempts failed, except the last one.
  int noisy_attempts = 0;      // repeated because they were noisy
  int continued_attempts = 0;  // ended by a time limit or a preemption, and continued from a checkpoint
  int cancelled_attempts = 0;  // cancelled by a user, who then retried the run
};

// Rows of a study, sorted by cell and repeat. Several callers may have the same rows. Never null.
using SharedCurveRows = std::shared_ptr<const std::vector<CurveRow>>;

// The interval in which an attempt had its nodes.
struct AttemptTime {
  Micros assigned = 0, finished = 0;  // 0: it has not ended
};

}  // namespace scalelab::db
