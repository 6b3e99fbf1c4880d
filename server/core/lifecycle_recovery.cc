// Implements the functions of Lifecycle that end attempts whose workers have ended. They first read the rest
// of the event files.
//
//   workers ended --> recovery: one request after another --> all or nothing can be read --> attempt ends
//
// A recovery has no limit of time or bytes as long as requests read something. A long recovery pauses after
// each request. A recovery waits while a user has to act before the files can be read, because the next attempt
// would also wait for this user. If the run is cancelled, the recovery ends instead of continuing slowly or
// waiting.
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
// TryAgain ends this delay when the agent of the user connects.
constexpr BackoffLimits kAwayAgain{1'000'000, 300'000'000};
constexpr db::Micros kSlowPause = 500'000;

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
    if (absl::IsFailedPrecondition(part.status())) {
      if (recovery.away == 0) {
        recovery.away = now;
        recovery.failures = 0;
        ++state_.study(attempt->study_id)->revision;
        fx.changed_studies.insert(attempt->study_id);
      }
      recovery.failing = 0;
      recovery.progress = now;
      recovery.retry_at = now + Backoff(++recovery.failures, kAwayAgain, token);
      return ReadEvents(now, fx);
    }
    if (std::exchange(recovery.away, 0) != 0) {
      recovery.began = now;
      recovery.failures = 0;
    }
    if (recovery.failing == 0) recovery.failing = now;
    recovery.retry_at = now + Backoff(++recovery.failures, kReadAgain, token);
    return ReadEvents(now, fx);
  }
  state_.reads_answered[std::string(RunsOf(*attempt))] = now;
  recovery.failing = 0;
  if (std::exchange(recovery.away, 0) != 0) recovery.began = now;
  recovery.failures = 0;
  const int64_t bytes_before = recovery.bytes;
  bool fits = true;
  for (ParsedBatch& batch : part->batches) {
    recovery.bytes += batch.append.end_position - batch.append.begin_position;
    fits = Append(*attempt, std::move(batch), fx) && fits;
  }
  // After a failed commit, a part may begin after the durable position. The next request then begins at
  // the durable position.
  const bool progress = fits && (recovery.bytes > bytes_before || part->next_rank > recovery.next_rank);
  if (progress) recovery.progress = now;
  if (fits) recovery.next_rank = part->next_rank;
  if (recovery.problem.empty()) recovery.problem = std::move(part->problem);
  if (part->end) recovery.end = std::move(part->end);
  recovery.software.merge(part->software);
  if (recovery.next_rank == static_cast<int>(attempt->ranks.size())) {
    EndRecovery(*attempt, recovery.problem, now, fx);
  } else if (recovery.bytes > options_.recovery_bytes || now - recovery.began > options_.recovery_timeout) {
    if (!std::exchange(recovery.slow, true)) {
      fx.warnings.push_back(absl::StrCat("attempt ", token, ": ", recovery.bytes >> 20,
                                         " MiB of its events were read in ", Seconds(now - recovery.began),
                                         " s after its workers had ended; the rest is read slowly"));
    }
    recovery.retry_at = now + kSlowPause;
  }
  ReadEvents(now, fx);
}

// Returns why the recovery exceeds a time limit; "" if it does not.
std::string Lifecycle::WhyTooSlow(const LiveAttempt& attempt, db::Micros now) const {
  const Recovery& recovery = *attempt.recovery;
  const int64_t limit = Seconds(options_.read_timeout);
  const bool cancelled = attempt.row.state == db::AttemptState::kStopping;
  if (recovery.away != 0 && recovery.number == 0) {
    if (!cancelled || now - recovery.away <= options_.read_timeout) return "";
    return absl::StrCat("its event files could not be read: ", recovery.error);
  }
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
  if (cancelled && recovery.slow) return "its run was cancelled while the rest of its event files was read";
  if (recovery.began != 0 && now - std::max(recovery.began, recovery.progress) > options_.recovery_timeout) {
    return absl::StrCat("nothing was read from its event files for ", Seconds(options_.recovery_timeout),
                        " s");
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
void Lifecycle::EndRecovery(LiveAttempt& attempt, std::string problem, db::Micros now, Effects& fx) {
  const Recovery& recovery = *attempt.recovery;
  const size_t unread = attempt.ranks.size() - static_cast<size_t>(recovery.next_rank);
  if (!problem.empty() && unread > 0) {
    int64_t stored = 0;
    for (const RankState& rank : attempt.ranks) stored += rank.stream.position;
    absl::StrAppend(&problem, "; ", stored, " bytes of events are stored, and the files of ", unread, " of ",
                    attempt.ranks.size(), " ranks were not read to their ends");
  }
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
