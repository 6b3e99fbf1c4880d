#include "server/scheduler/slurm_errors.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/scheduler/slurm_queue.h"

namespace scalelab::server {
namespace {

using Code = absl::StatusCode;

enum class Field { kNone, kPartition, kShape, kTime, kAccount, kQos, kConstraint, kReservation, kOptions };

struct Known {
  absl::string_view text;  // part of a message of slurm_strerror or sbatch
  Code code;
  Field field = Field::kNone;
  absl::string_view advice = "";
};

constexpr Code kNever = Code::kInvalidArgument;
constexpr Code kForbidden = Code::kPermissionDenied;
constexpr Code kLater = Code::kResourceExhausted;
constexpr Code kUnreachable = Code::kUnavailable;
constexpr Code kUnclear = Code::kUnknown;
constexpr absl::string_view kRequestLess =
    "request fewer ranks, ranks_per_node, cpus_per_rank, gpus_per_rank or memory_mib, or another partition";

// The first match is used. The output may have several messages, so causes that may pass come before
// permanent ones, and specific messages come before general ones. After any other message it is unknown
// whether the job was accepted.
constexpr Known kKnown[] = {
    // A controller may have received the request, even if another one could not be reached.
    {"Socket timed out", kUnclear},
    {"Zero Bytes were transmitted or received", kUnclear},
    {"(send failure)", kUnclear},
    {"(receive failure)", kUnclear},
    {"(shutdown failure)", kUnclear},
    // With these errors, the request was certainly not sent.
    {"Unable to contact slurm controller (connect failure)", kUnreachable},
    {"Slurm backup controller in standby mode", kUnreachable},
    {"Controller is in standby mode", kUnreachable},
    {"Failed to connect to authentication agent", kUnreachable},
    {"Munge encode failed", kUnreachable},
    // Other failures of connections.
    {"timed out", kUnclear},
    {"Connection refused", kUnclear},
    {"Connection reset by peer", kUnclear},
    {"Broken pipe", kUnclear},
    {"Message send failure", kUnclear},
    {"Message receive failure", kUnclear},
    {"Communication connection failure", kUnclear},
    {"Communication shutdown failure", kUnclear},
    // Temporary causes, such as limits on submitted jobs (AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit).
    {"SubmitJob", kLater},
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
    // Limits that this job alone exceeds, if the QOS refuses such jobs at submission (DenyOnLimit).
    {"MaxWallDuration", kNever, Field::kTime, "shorten resources.time"},
    {"MinutesPerJob", kNever, Field::kTime, "shorten resources.time, or request fewer ranks"},
    {"PerJob", kNever, Field::kShape, kRequestLess},
    {"PerNode", kNever, Field::kShape, kRequestLess},
    {"PerUser", kNever, Field::kShape, kRequestLess},
    {"PerAccount", kNever, Field::kShape, kRequestLess},
    {"QOSMin", kNever, Field::kShape, "request more resources, or change sbatch_options.qos"},
    // Other limits are temporary. These sentences are the same for all limits.
    {"Job violates accounting/QOS policy", kLater},
    {"Requested account has breached requested QOS usage threshold", kLater},
    // Permanent errors.
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
     "this cluster has no such GPUs; change gpus_per_rank or sbatch_options.gres"},
    {"Invalid license", kNever, Field::kOptions, "change sbatch_options.licenses"},
    {"Invalid node name", kNever, Field::kOptions, "change sbatch_options.nodelist or exclude"},
    {"Requested time limit is invalid", kNever, Field::kTime, "shorten resources.time"},
    {"Time limit specification required", kNever, Field::kTime, "set resources.time"},
    {"Requested node configuration is not available", kNever, Field::kShape, kRequestLess},
    {"More processors requested than permitted", kNever, Field::kShape, kRequestLess},
    {"Node count specification invalid", kNever, Field::kShape, kRequestLess},
    {"CPU count", kNever, Field::kShape, kRequestLess},
    {"Task count specification invalid", kNever, Field::kShape, kRequestLess},
    {"Memory required by task is not available", kNever, Field::kShape, "lower resources.memory_mib"},
    {"Memory specification can not be satisfied", kNever, Field::kShape, "lower resources.memory_mib"},
    {"unrecognized option", kNever, Field::kOptions, "correct sbatch_options"},
    {"option '", kNever, Field::kOptions, "correct sbatch_options"},
    {"mutually exclusive", kNever, Field::kOptions, "remove one of them from sbatch_options"},
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

std::string FailureReason(const CommandResult& result) {
  if (!result.lost.empty()) return result.lost;
  if (result.truncated) return "it wrote more than 16 MiB";
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(result.err, '\n', absl::SkipWhitespace())) {
    line = absl::StripAsciiWhitespace(line);
    const size_t error = line.find("error: ");  // "sbatch: error: ..."
    std::string message(error < 20 ? line.substr(error + 7) : line);
    std::replace_if(
        message.begin(), message.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
    if (lines.size() < 4 && std::find(lines.begin(), lines.end(), message) == lines.end())
      lines.push_back(message.substr(0, 300));
  }
  const std::string messages = absl::StrJoin(lines, "; ");
  if (result.timed_out)
    return absl::StrCat("it did not end before the timeout", messages.empty() ? "" : ": ", messages);
  if (!messages.empty()) return messages;
  return result.signal != 0 ? absl::StrCat("it was killed by signal ", result.signal)
                            : absl::StrCat("it ended with status ", result.exit_code, " and no message");
}

std::string Shape(const JobRequest& request) {
  const auto count = [](int n, absl::string_view what) {
    return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
  };
  std::string shape =
      absl::StrCat(count(request.nodes, "node"), " with ", count(request.ranks_per_node, "rank"), " of ",
                   count(request.cpus_per_rank, "core"));
  if (request.gpus_per_rank > 0) absl::StrAppend(&shape, " and ", count(request.gpus_per_rank, "GPU"));
  if (request.ranks_per_node > 1) absl::StrAppend(&shape, " each");
  if (request.memory_mib > 0) absl::StrAppend(&shape, ", ", request.memory_mib, " MiB per node");
  return shape;
}

bool MayPass(absl::string_view messages) {
  return std::any_of(std::begin(kKnown), std::end(kKnown), [&](const Known& known) {
    return (known.code == kUnclear || known.code == kUnreachable) && absl::StrContains(messages, known.text);
  });
}

Refusal InterpretFailure(const CommandResult& result, const JobRequest& request) {
  const std::string reason = FailureReason(result);
  const std::string messages = absl::StrCat(reason, "\n", result.err);  // `reason` has only the first lines
  // When the queue is full, sbatch retries for two minutes. It is unknown whether its last attempt arrived.
  const bool killed = result.timed_out || result.truncated || result.exit_code < 0;
  if (!killed && result.exit_code != 0) {
    for (const Known& known : kKnown) {
      if (!absl::StrContains(messages, known.text)) continue;
      if (known.code == kUnclear) break;
      if (known.code == kUnreachable) {
        return {absl::UnavailableError(absl::StrCat("not submitted: Slurm cannot be reached: ", reason))};
      }
      if (known.code == kLater)
        return {absl::ResourceExhaustedError(absl::StrCat("Slurm accepts no job at the moment: ", reason))};
      return {absl::Status(known.code, absl::StrCat("Slurm refused ", About(known.field, request), " (",
                                                    reason, "); ", known.advice))};
    }
  }
  const absl::string_view output = absl::StripAsciiWhitespace(result.out);
  return {absl::UnknownError(absl::StrCat(
              "it is unknown whether Slurm accepted the job (sbatch: ",
              result.exit_code == 0 ? absl::StrCat("no job id in its output '", Printable(output, 100), "'")
                                    : reason,
              ")")),
          true};
}

}  // namespace scalelab::server
