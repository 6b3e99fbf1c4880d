// Implements the functions of Lifecycle that end attempts whose workers have ended. They first read the rest
// of the event files.
//
//   workers ended --> recovery: one request after another --> all read, or limit exceeded --> attempt ends
//
// A recovery survives a restart: the row of its attempt is not final, and has the cause of the failure or an
// allocation that has ended. The events of a response are committed like a worker's report, before the next
// request is made.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "catalog/device.h"
#include "server/core/backoff.h"
#include "server/core/lifecycle.h"
#include "server/core/outcome.h"

namespace scalelab::server {
namespace {

constexpr BackoffLimits kReadAgain{1'000'000, 10'000'000};

int64_t Seconds(db::Micros time) { return time / 1'000'000; }

// Returns the directory of runs that contains the attempt's directory, <runs>/<study>/<run>/<attempt>. With runs_by_owner,
// each owner has one. What is below it usually hangs together: one filesystem, or the agent of one user.
absl::string_view RunsOf(const LiveAttempt& attempt) {
  absl::string_view directory = attempt.row.directory;
  for (int part = 0; part < 3; ++part) directory = directory.substr(0, directory.rfind('/'));
  return directory;
}

}  // namespace

void Lifecycle::EndWithoutWorkers(LiveAttempt& attempt, db::Cause cause, std::string message, db::Micros now,
                                  Effects& fx) {
  if (attempt.recovery) return;  // the recovery has already begun
  if (attempt.row.state == db::AttemptState::kStopping) {
    cause = db::Cause::kNone;
    message = attempt.stop_reason;
  }
  attempt.row.cause = cause;
  attempt.row.message = std::move(message);
  attempt.held_since = 0;
  attempt.recovery.emplace().since = now;
  state_.recovering.insert(attempt.row.id);
  const bool all_reported = static_cast<int>(attempt.ended.size()) == attempt.nodes();
  if (!options_.read_events || all_reported) return EndRecovery(attempt, "", now, fx);
  fx.batch.attempts.push_back(attempt.row);
  ++state_.study(attempt.study_id)->revision;
  fx.changed_studies.insert(attempt.study_id);
  ReadEvents(now, fx);
}

// Makes requests for the attempts that wait, up to the limits of requests in flight.
void Lifecycle::ReadEvents(db::Micros now, Effects& fx) {
  int in_flight = 0;
  std::map<absl::string_view, int> by_runs;  // requests in flight by RunsOf
  for (const int64_t id : state_.recovering) {
    const LiveAttempt& attempt = *state_.attempt(id);
    if (attempt.recovery->number == 0) continue;
    ++in_flight;
    ++by_runs[RunsOf(attempt)];
  }
  for (const int64_t id : state_.recovering) {
    if (in_flight >= options_.max_reads) return;
    LiveAttempt& attempt = *state_.attempt(id);
    Recovery& recovery = *attempt.recovery;
    if (recovery.number != 0 || recovery.retry_at > now) continue;
    int& of_runs = by_runs[RunsOf(attempt)];
    if (of_runs >= options_.max_reads_of_directory) continue;
    ++of_runs;
    ++in_flight;
    recovery.number = ++state_.last_read;
    recovery.since = now;
    if (recovery.began == 0) recovery.began = now;
    EventRequest& request = fx.read.emplace_back();
    request.token = attempt.row.token;
    request.directory = attempt.row.directory;
    request.number = recovery.number;
    request.first_rank = recovery.next_rank;
    for (size_t rank = recovery.next_rank; rank < attempt.ranks.size(); ++rank)
      request.places.push_back({attempt.ranks[rank].stream.position, attempt.ranks[rank].stream.line});
    const LiveStudy& study = *state_.study(attempt.study_id);
    if (!options_.environment_of) continue;
    const auto cell = study.cell_of[attempt.position];
    const bool gpus = UsesGpus(study.cells.Text(cell, v1::RunSpec::kDeviceFieldNumber),
                               study.cells.Int(cell, v1::RunSpec::kGpusPerRankFieldNumber));
    request.environment =
        options_.environment_of(EngineOn(study.cells.Text(cell, v1::RunSpec::kEngineFieldNumber), gpus));
  }
}

void Lifecycle::EventsRead(const std::string& token, int64_t number, absl::StatusOr<EventPart> part,
                           db::Micros now, Effects& fx) {
  const auto it = state_.attempt_by_token.find(token);
  LiveAttempt* attempt = it == state_.attempt_by_token.end() ? nullptr : state_.attempt(it->second);
  if (attempt == nullptr || !attempt->recovery || attempt->recovery->number != number) return;
  Recovery& recovery = *attempt->recovery;
  recovery.number = 0;
  recovery.since = now;
  if (!part.ok()) {
    recovery.error = std::string(part.status().message());
    if (recovery.failing == 0) recovery.failing = now;
    recovery.retry_at = now + Backoff(++recovery.failures, kReadAgain, token);
    return ReadEvents(now, fx);
  }
  state_.reads_answered[std::string(RunsOf(*attempt))] = now;
  recovery.failing = 0;
  recovery.failures = 0;
  bool fits = true;
  for (ParsedBatch& batch : part->batches) {
    recovery.bytes += batch.append.end_position - batch.append.begin_position;
    fits = Append(*attempt, std::move(batch), fx) && fits;
  }
  // After a failed commit, a part may begin after the durable position. The next request then begins at
  // the durable position.
  if (fits) recovery.next_rank = part->next_rank;
  if (recovery.problem.empty()) recovery.problem = std::move(part->problem);
  if (part->end) recovery.end = std::move(part->end);
  recovery.software.merge(part->software);
  if (recovery.next_rank == static_cast<int>(attempt->ranks.size())) {
    EndRecovery(*attempt, recovery.problem, now, fx);
  } else if (recovery.bytes > options_.recovery_bytes) {
    EndRecovery(
        *attempt,
        absl::StrCat("more than ", options_.recovery_bytes >> 20, " MiB of events were left; those of rank ",
                     recovery.next_rank, " and later ones are not all stored"),
        now, fx);
  }
  ReadEvents(now, fx);
}

// Returns why the recovery exceeds a time limit; "" if it does not.
std::string Lifecycle::WhyTooSlow(const LiveAttempt& attempt, db::Micros now) const {
  const Recovery& recovery = *attempt.recovery;
  const int64_t limit = Seconds(options_.read_timeout);
  if (recovery.failing != 0 && now - recovery.failing > options_.read_timeout) {
    return absl::StrCat("its event files could not be read for ", limit, " s: ", recovery.error);
  }
  if (recovery.number != 0 && now - recovery.since > options_.read_timeout) {
    return absl::StrCat("the filesystem of its event files did not answer for ", limit, " s");
  }
  // This recovery waits for the requests of other attempts. Those requests are abandoned after the time
  // limit, so this recovery should have begun by now.
  const auto answered = state_.reads_answered.find(RunsOf(attempt));
  const db::Micros last = answered == state_.reads_answered.end() ? 0 : answered->second;
  if (recovery.number == 0 && recovery.failing == 0 &&
      now - std::max(recovery.since, last) > 2 * options_.read_timeout) {
    return absl::StrCat("the filesystem of other event files did not answer for ", 2 * limit, " s");
  }
  if (recovery.began != 0 && now - recovery.began > options_.recovery_timeout) {
    return absl::StrCat("its event files were not read within ", Seconds(options_.recovery_timeout), " s");
  }
  return "";
}

void Lifecycle::EndSlowRecoveries(db::Micros now, Effects& fx) {
  const std::vector<int64_t> recovering(state_.recovering.begin(), state_.recovering.end());
  for (const int64_t id : recovering) {
    LiveAttempt& attempt = *state_.attempt(id);
    const std::string why = options_.read_events ? WhyTooSlow(attempt, now) : "";
    if (!options_.read_events || !why.empty()) EndRecovery(attempt, why, now, fx);
  }
}

// Ends the attempt. `problem` is the reason why events may be missing.
void Lifecycle::EndRecovery(LiveAttempt& attempt, const std::string& problem, db::Micros now, Effects& fx) {
  const Recovery& recovery = *attempt.recovery;
  if (!problem.empty()) {
    fx.warnings.push_back(absl::StrCat("attempt ", attempt.row.token, ": events may be missing: ", problem,
                                       "; look at ", attempt.row.directory));
  }
  const bool complete = problem.empty() && recovery.next_rank == static_cast<int>(attempt.ranks.size());
  if (complete) {
    // If the worker has not recorded the end, the attempt succeeds only with the finish events of all ranks.
    const auto end = recovery.end.value_or(v1::SynchronizeRequest::AttemptStatus());
    const Outcome outcome = Judge(attempt.ranks, end, !recovery.end || NeedsFinish(attempt));
    if (outcome.state == db::AttemptState::kSucceeded) {
      if (recovery.end) attempt.row.exit_status = end.exit_status();
      attempt.row.parameter_hash = outcome.parameter_hash;
      if (attempt.row.started == 0) attempt.row.started = attempt.row.assigned;
      return EndAttempt(attempt, outcome.state, db::Cause::kNone, "", now, fx);
    }
  }
  if (attempt.row.state == db::AttemptState::kStopping) {
    return EndAttempt(attempt, db::AttemptState::kCancelled, db::Cause::kNone, attempt.stop_reason, now, fx);
  }
  std::string message = attempt.row.message;
  if (!problem.empty()) absl::StrAppend(&message, "; events may be missing: ", problem);
  EndAttempt(attempt, db::AttemptState::kFailed, attempt.row.cause, std::move(message), now, fx);
}

}  // namespace scalelab::server
