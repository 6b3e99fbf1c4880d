#include "server/scheduler/slurm_errors.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

using Code = absl::StatusCode;

enum class Field { kNone, kPartition, kShape, kTime, kAccount, kQos, kConstraint, kReservation, kOptions };

struct Known {
  absl::string_view words;  // as slurm_strerror and sbatch say them
  Code code;
  Field field = Field::kNone;
  absl::string_view then = "";  // what to try
};

constexpr Code kNever = Code::kInvalidArgument;
constexpr Code kForbidden = Code::kPermissionDenied;
constexpr Code kLater = Code::kResourceExhausted;
constexpr Code kAway = Code::kUnavailable;
constexpr absl::string_view kAskForLess =
    "ask for fewer ranks, ranks_per_node, cpus_per_rank, gpus_per_rank or memory_mib, or another partition";

// The first match counts: the particular before the general. What is not here is UNAVAILABLE and open.
constexpr Known kKnown[] = {
    // Whatever else is said: it was not sent.
    {"Unable to contact slurm controller (connect failure)", kAway},
    {"Slurm backup controller in standby mode", kAway},
    {"Controller is in standby mode", kAway},
    {"Failed to connect to authentication agent", kAway},
    {"Munge encode failed", kAway},
    // A limit on submitted jobs (AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit, ...) passes.
    {"SubmitJob", kLater},
    // What this job alone is too large for, where the QOS refuses at submit (DenyOnLimit).
    {"MaxWallDuration", kNever, Field::kTime, "shorten resources.time"},
    {"MinutesPerJob", kNever, Field::kTime, "shorten resources.time, or ask for fewer ranks"},
    {"PerJob", kNever, Field::kShape, kAskForLess},
    {"PerNode", kNever, Field::kShape, kAskForLess},
    {"PerUser", kNever, Field::kShape, kAskForLess},
    {"PerAccount", kNever, Field::kShape, kAskForLess},
    {"QOSMin", kNever, Field::kShape, "ask for more, or change sbatch_options.qos"},
    // Other limits pass.
    {"Job violates accounting/QOS policy", kLater},
    {"Requested account has breached requested QOS usage threshold", kLater},
    {"MaxJobCount limit reached", kLater},
    {"Unable to create job record, try again", kLater},
    {"Resource temporarily unavailable", kLater},
    {"Rate limit exceeded", kLater},
    {"Licenses currently unavailable", kLater},
    {"Required partition not available", kLater},
    {"Requested partition configuration not available now", kLater},
    {"Requested operation is presently disabled", kLater},
    {"Required node not available", kLater},
    {"Requested reservation not usable now", kLater},
    {"Requested reservation is in use", kLater},
    {"Burst Buffer resource limit exceeded", kLater},
    // Never.
    {"nvalid partition", kNever, Field::kPartition, "sinfo lists them; change resources.partition"},
    {"No partition specified or system default partition", kNever, Field::kPartition,
     "name one in resources.partition"},
    {"Requested nodes not in this partition", kNever, Field::kPartition,
     "change resources.partition or sbatch_options.nodelist"},
    {"Invalid account", kNever, Field::kAccount, "change sbatch_options.account"},
    {"Invalid qos", kNever, Field::kQos, "change sbatch_options.qos"},
    {"Invalid feature", kNever, Field::kConstraint, "change sbatch_options.constraint"},
    {"Requested reservation is invalid", kNever, Field::kReservation, "change sbatch_options.reservation"},
    {"Invalid generic resource (gres)", kNever, Field::kShape,
     "this cluster knows no such GPUs; change gpus_per_rank or sbatch_options.gres"},
    {"Invalid license", kNever, Field::kOptions, "change sbatch_options.licenses"},
    {"Invalid node name", kNever, Field::kOptions, "change sbatch_options.nodelist or exclude"},
    {"Requested time limit is invalid", kNever, Field::kTime, "shorten resources.time"},
    {"Time limit specification required", kNever, Field::kTime, "set resources.time"},
    {"Requested node configuration is not available", kNever, Field::kShape, kAskForLess},
    {"More processors requested than permitted", kNever, Field::kShape, kAskForLess},
    {"Node count specification invalid", kNever, Field::kShape, kAskForLess},
    {"CPU count", kNever, Field::kShape, kAskForLess},
    {"Task count specification invalid", kNever, Field::kShape, kAskForLess},
    {"Memory required by task is not available", kNever, Field::kShape, "lower resources.memory_mib"},
    {"Memory specification can not be satisfied", kNever, Field::kShape, "lower resources.memory_mib"},
    {"unrecognized option", kNever, Field::kOptions, "correct sbatch_options"},
    {"option '", kNever, Field::kOptions, "correct sbatch_options"},
    {"mutually exclusive", kNever, Field::kOptions, "leave one of them out of sbatch_options"},
    {"Invalid --", kNever, Field::kOptions, "correct sbatch_options"},
    {"Invalid wckey", kNever, Field::kOptions, "change sbatch_options.wckey"},
    {"Pathname of a file, directory or other parameter too long", kNever, Field::kOptions,
     "shorten sbatch_options, or start scalelabd with a shorter --runs"},
    {"User's group not permitted to use this partition", kForbidden, Field::kPartition,
     "change resources.partition, or ask the administrators"},
    {"Access denied to requested reservation", kForbidden, Field::kReservation,
     "change sbatch_options.reservation, or ask the administrators"},
    {"ermission denied", kForbidden, Field::kNone, "ask the administrators what this account may use"},
};

std::string Option(const JobRequest& request, absl::string_view name) {
  for (auto it = request.options.rbegin(); it != request.options.rend(); ++it) {
    if (it->first == name) return it->second;
  }
  return "(default)";
}

std::string About(Field field, const JobRequest& request) {
  switch (field) {
    case Field::kPartition:
      return absl::StrCat("partition ", request.partition.empty() ? "(default)" : request.partition);
    case Field::kShape:
      return Shape(request);
    case Field::kTime:
      return absl::StrCat("a time limit of ", absl::FormatDuration(request.time_limit));
    case Field::kAccount:
      return absl::StrCat("account ", Option(request, "account"));
    case Field::kQos:
      return absl::StrCat("qos ", Option(request, "qos"));
    case Field::kConstraint:
      return absl::StrCat("constraint ", Option(request, "constraint"));
    case Field::kReservation:
      return absl::StrCat("reservation ", Option(request, "reservation"));
    case Field::kOptions:
      return "the options of the job";
    case Field::kNone:
      break;
  }
  return "the job";
}

}  // namespace

std::string Shape(const JobRequest& request) {
  const auto count = [](int n, absl::string_view what) {
    return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
  };
  std::string shape =
      absl::StrCat(count(request.nodes, "node"), " with ", count(request.ranks_per_node, "rank"), " of ",
                   count(request.cpus_per_rank, "core"));
  if (request.gpus_per_rank > 0) absl::StrAppend(&shape, " and ", count(request.gpus_per_rank, "GPU"));
  if (request.ranks_per_node > 1) absl::StrAppend(&shape, " each");
  if (request.memory_mib > 0) absl::StrAppend(&shape, ", ", request.memory_mib, " MiB a node");
  return shape;
}

Refusal Refused(const CommandResult& result, const JobRequest& request) {
  const std::string words = Complaint(result);
  // sbatch goes on trying by itself for two minutes when the queue is full; whether its last try was heard is
  // not known.
  const bool killed = result.timed_out || result.truncated || result.exit_code < 0;
  if (!killed && result.exit_code != 0) {
    for (const Known& known : kKnown) {
      if (!absl::StrContains(words, known.words)) continue;
      if (known.code == kAway) {
        return {absl::UnavailableError(absl::StrCat("not submitted, Slurm cannot be reached: ", words))};
      }
      if (known.code == kLater)
        return {absl::ResourceExhaustedError(absl::StrCat("Slurm takes no job for now: ", words))};
      return {absl::Status(known.code, absl::StrCat("Slurm refused ", About(known.field, request), " (",
                                                    words, "); ", known.then))};
    }
  }
  return {
      absl::UnavailableError(absl::StrCat(
          "it is not known whether Slurm took the job (sbatch: ",
          result.exit_code == 0 ? absl::StrCat("no job id in its answer '", result.out.substr(0, 100), "'")
                                : words,
          ")")),
      true};
}

}  // namespace scalelab::server
