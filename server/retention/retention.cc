#include "server/retention/retention.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "files/attempt_files.h"
#include "proto/status.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

using db::Removal;

constexpr int kAttemptsPerRead = 500;
// Pause between two transactions, so that other commits do not wait for long.
constexpr absl::Duration kBetweenPieces = absl::Milliseconds(5);
// The files of a final study rarely change, so their size is measured once a day while the sum is within the limit.
constexpr absl::Duration kKeepSizes = absl::Hours(24);
// Somebody may have removed files by hand, so sizes that are older than this are measured again before a removal.
constexpr absl::Duration kTrustSizes = absl::Minutes(10);
constexpr size_t kNamedStudies = 20;  // largest number of ids in the text of a rule

std::string SizeText(int64_t bytes) {
  if (bytes % (int64_t{1} << 40) == 0) return absl::StrCat(bytes >> 40, " TiB");
  if (bytes % (int64_t{1} << 30) == 0) return absl::StrCat(bytes >> 30, " GiB");
  return absl::StrCat(bytes >> 20, " MiB");
}

std::string What(Removal what) {
  return what == Removal::kPoints ? "points" : what == Removal::kLogs ? "logs" : "attempt directories";
}

// Returns ids for the end of the text of a rule: ": 3, 7 and 12 more".
std::string IdsText(const std::vector<int64_t>& ids) {
  if (ids.empty()) return "";
  const auto end = ids.begin() + static_cast<int64_t>(std::min(ids.size(), kNamedStudies));
  const size_t more = ids.size() - std::min(ids.size(), kNamedStudies);
  return absl::StrCat(": ", absl::StrJoin(ids.begin(), end, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

void LogLeft(const FilesRemoved& removed) {
  if (removed.left == 0) return;
  spdlog::warn("retention: left {} directories alone; the last: {}", removed.left, removed.why_left);
}

}  // namespace

Retention::Retention(RetentionOptions options, db::Store& store)
    : options_(std::move(options)), store_(store), rules_(options_.rules) {
  thread_ = std::thread([this] { Run(); });
}

Retention::~Retention() { Stop(absl::InfiniteDuration()); }

bool Retention::Stop(absl::Duration grace) {
  bool ended = true;
  stop_.Stop();
  {
    SteadyMutexLock lock(&mutex_);
    if (!thread_.joinable()) return true;
    const auto over = [this] {
      mutex_.AssertHeld();
      return ended_;
    };
    ended = mutex_.AwaitWithTimeout(over, grace);
  }
  if (ended)
    thread_.join();
  else
    thread_.detach();
  return ended;
}

void Retention::SetRules(const RetentionRules& rules) {
  SteadyMutexLock lock(&mutex_);
  rules_ = rules;
}

RetentionRules Retention::rules() const {
  SteadyMutexLock lock(&mutex_);
  return rules_;
}

void Retention::Run() {
  absl::Duration wait = options_.first;
  while (!stop_.WaitFor(wait)) {
    wait = options_.period;
    if (rules().empty()) continue;
    const auto pruned = Prune(/*dry_run=*/false, [this] { return stop_.stopped(); });
    if (!pruned.ok()) {
      spdlog::error("retention failed, and is tried again in {}: {}", absl::FormatDuration(wait),
                    pruned.status().ToString());
      continue;
    }
    for (const auto& removed : pruned->removed()) {
      if (removed.studies() == 0) continue;
      spdlog::info(
          "retention: {}: removed of {} studies {} points, the files of {} attempts, {} bytes of files",
          removed.rule(), removed.studies(), removed.points(), removed.directories(), removed.bytes());
    }
  }
  SteadyMutexLock lock(&mutex_);
  ended_ = true;
  mutex_.SignalAll();
}

absl::StatusOr<std::vector<Retention::Due>> Retention::FindDue(const RetentionRules& rules, db::Micros now) {
  std::vector<Due> due;
  // Directories come before logs, because removing a directory removes the logs in it.
  for (const auto& [what, age] :
       {std::pair(Removal::kDirectories, rules.directories), std::pair(Removal::kLogs, rules.logs),
        std::pair(Removal::kPoints, rules.points)}) {
    if (age == absl::InfiniteDuration()) continue;
    auto studies = db::ListRemovable(store_, what, now - absl::ToInt64Microseconds(age));
    if (!studies.ok()) return studies.status();
    due.push_back({absl::StrCat(What(what), " older than ", AgeText(age)), what, *std::move(studies), {}});
  }
  // Skip the logs in directories that the first rule removes.
  if (due.size() > 1 && due[0].what == Removal::kDirectories && due[1].what == Removal::kLogs) {
    const std::set<int64_t> whole(due[0].studies.begin(), due[0].studies.end());
    std::erase_if(due[1].studies, [&](int64_t id) { return whole.contains(id); });
  }
  for (Due& rule : due) {
    if (rule.what != Removal::kPoints) continue;
    for (const int64_t id : rule.studies) {
      const auto size = db::MeasurePoints(store_, id);
      if (!size.ok()) return size.status();
      rule.points.points += size->points;
      rule.points.bytes += size->bytes;
    }
  }
  if (absl::Status status = FindDueBySize(rules, now, due); !status.ok()) return status;
  return due;
}

absl::Status Retention::FindDueBySize(const RetentionRules& rules, db::Micros now, std::vector<Due>& due) {
  if (rules.database_bytes == 0) return absl::OkStatus();
  Due by_size{
      absl::StrCat("database larger than ", SizeText(rules.database_bytes)), Removal::kPoints, {}, {}};
  const auto unfinished = db::ListUnfinished(store_, Removal::kPoints);
  if (!unfinished.ok()) return unfinished.status();
  const auto size = db::GetDatabaseSize(store_);
  if (!size.ok()) return size.status();
  int64_t left = size->bytes - size->free_bytes;
  std::set<int64_t> by_age;
  for (const Due& rule : due) {
    if (rule.what != Removal::kPoints) continue;
    left -= rule.points.bytes;
    by_age.insert(rule.studies.begin(), rule.studies.end());
  }
  // The size is not known while points are being removed.
  if (left > rules.database_bytes && unfinished->empty()) {
    const auto studies = db::ListRemovable(store_, Removal::kPoints, now);
    if (!studies.ok()) return studies.status();
    for (const int64_t id : *studies) {
      if (left <= rules.database_bytes) break;
      if (by_age.contains(id)) continue;
      const auto of_study = db::MeasurePoints(store_, id);
      if (!of_study.ok()) return of_study.status();
      by_size.studies.push_back(id);
      by_size.points.points += of_study->points;
      by_size.points.bytes += of_study->bytes;
      left -= of_study->bytes;
    }
  }
  due.push_back(std::move(by_size));
  return absl::OkStatus();
}

absl::StatusOr<v1::PruneResponse> Retention::Prune(bool dry_run, const std::function<bool()>& over) {
  if (!at_work_.TryLock()) {
    return MakeError(absl::StatusCode::kUnavailable, "PRUNE_AT_WORK",
                     "retention is being applied already; try again in a minute");
  }
  try {
    auto response = PruneAlone(dry_run, over);
    at_work_.Unlock();
    return response;
  } catch (...) {  // the caller continues after std::bad_alloc
    at_work_.Unlock();
    throw;
  }
}

absl::StatusOr<v1::PruneResponse> Retention::PruneAlone(bool dry_run, const std::function<bool()>& over) {
  const db::Micros now = absl::ToUnixMicros(options_.now());
  v1::PruneResponse response;
  const auto before = db::GetDatabaseSize(store_);
  if (!before.ok()) return before.status();
  response.set_database_bytes_before(before->bytes);
  const RetentionRules rules = this->rules();
  auto due = FindDue(rules, now);
  if (!due.ok()) return due.status();
  for (const Due& rule : *due) {
    const auto removed = rule.what == Removal::kPoints ? RemovePoints(rule, now, dry_run)
                                                       : RemoveFiles(rule, now, dry_run, over);
    if (!removed.ok()) return removed.status();
    *response.add_removed() = *removed;
  }
  if (absl::Status status = PruneFiles(rules, now, dry_run, over, *std::move(due), response); !status.ok())
    return status;
  while (!dry_run && !over() && !stop_.stopped()) {
    const auto more = store_.Maintain();
    if (!more.ok()) return more.status();
    if (!*more) break;
    absl::SleepFor(kBetweenPieces);
  }
  const auto after = db::GetDatabaseSize(store_);
  if (!after.ok()) return after.status();
  response.set_database_bytes_after(after->bytes);
  return response;
}

absl::Status Retention::PruneFiles(const RetentionRules& rules, db::Micros now, bool dry_run,
                                   const std::function<bool()>& over, std::vector<Due> due,
                                   v1::PruneResponse& response) {
  for (const auto& [what, limit] : {std::pair(Removal::kDirectories, rules.directories_bytes),
                                    std::pair(Removal::kLogs, rules.logs_bytes)}) {
    if (limit == 0) continue;
    auto by_size = FindDueByFiles(what, limit, now, due, over);
    if (!by_size.ok()) return by_size.status();
    const auto removed = RemoveFiles(*by_size, now, dry_run, over);
    if (!removed.ok()) return removed.status();
    *response.add_removed() = *removed;
    due.push_back(*std::move(by_size));
  }
  if (rules.directories == absl::InfiniteDuration()) return absl::OkStatus();
  const auto removed = RemoveDeletedStudies(rules.directories, now, dry_run, over);
  if (!removed.ok()) return removed.status();
  *response.add_removed() = *removed;
  return absl::OkStatus();
}

absl::StatusOr<Retention::Due> Retention::FindDueByFiles(Removal what, int64_t limit, db::Micros now,
                                                         const std::vector<Due>& due,
                                                         const std::function<bool()>& over) {
  Due by_size{absl::StrCat(What(what), " larger than ", SizeText(limit), " in total"), what, {}, {}};
  std::set<int64_t> removed;
  for (const Due& rule : due) {
    if (rule.what == what) by_size.continues = false;
    if (rule.what == what || rule.what == Removal::kDirectories)
      removed.insert(rule.studies.begin(), rule.studies.end());
  }
  auto studies = db::ListRemovable(store_, what, now);
  if (!studies.ok()) return studies.status();
  std::erase_if(*studies, [&](int64_t id) { return removed.contains(id); });
  const std::set<int64_t> present(studies->begin(), studies->end());
  std::erase_if(sizes_, [&](const auto& size) {
    return size.first.first == what && !present.contains(size.first.second);
  });
  int64_t left = 0;
  for (const absl::Duration max_age : {kKeepSizes, kTrustSizes}) {
    const auto sum = MeasureFiles(what, *studies, now, max_age, over);
    if (!sum.ok()) return sum.status();
    if (!sum->has_value()) {
      absl::StrAppend(&by_size.rule, " (not measured yet)");
      return by_size;
    }
    left = **sum;
    if (left <= limit) return by_size;
  }
  for (const int64_t id : *studies) {
    if (left <= limit) break;
    const int64_t bytes = sizes_[{what, id}].bytes;
    if (bytes == 0) continue;
    by_size.studies.push_back(id);
    left -= bytes;
  }
  return by_size;
}

absl::StatusOr<std::optional<int64_t>> Retention::MeasureFiles(Removal what,
                                                               const std::vector<int64_t>& studies,
                                                               db::Micros now, absl::Duration max_age,
                                                               const std::function<bool()>& over) {
  if (studies.empty()) return 0;
  auto files = RunFiles::Open(options_.runs_dir, options_.agents);
  if (!files.ok()) return files.status();
  int64_t sum = 0;
  for (const int64_t id : studies) {
    FilesSize& size = sizes_[{what, id}];
    // A size from the future was measured before the clock was set back.
    if (size.at < absl::FromUnixMicros(now) - max_age || size.at > options_.now()) {
      if (over() || stop_.stopped()) return std::nullopt;
      FilesRemoved found;
      const absl::Status status = RemoveFilesOf(*files, what, id, now, /*dry_run=*/true, over, found);
      if (over() || stop_.stopped()) return std::nullopt;
      // After an error, the sum contains the files that were found so far, and the next call measures
      // this study again.
      size = {found.bytes, status.ok() ? options_.now() : absl::InfinitePast()};
    }
    sum += size.bytes;
  }
  return sum;
}

absl::StatusOr<v1::PruneResponse::Removed> Retention::RemoveDeletedStudies(
    absl::Duration age, db::Micros now, bool dry_run, const std::function<bool()>& over) {
  v1::PruneResponse::Removed response;
  auto files = AttemptFiles::Open(options_.runs_dir);
  if (!files.ok()) return files.status();
  const auto present = files->ListStudies();
  if (!present.ok()) return present.status();
  const auto deleted = db::ListDeletedStudies(store_, *present);
  if (!deleted.ok()) return deleted.status();
  FilesRemoved removed;
  std::vector<int64_t> studies;
  for (const int64_t id : *deleted) {
    if (over() || stop_.stopped()) break;
    const int64_t files_before = removed.files;
    const auto done = files->RemoveStudy(
        id, absl::FromUnixMicros(now) - age, dry_run, [&] { return over() || stop_.stopped(); }, removed);
    if (done.value_or(removed.files > files_before)) studies.push_back(id);
    if (!done.ok() && !absl::IsCancelled(done.status()))
      spdlog::warn("retention: files of the deleted study {} remain, and are tried again: {}", id,
                   std::string(done.status().message()));
  }
  LogLeft(removed);
  response.set_rule(
      absl::StrCat("directories of deleted studies older than ", AgeText(age), IdsText(studies)));
  response.set_studies(static_cast<int64_t>(studies.size()));
  response.set_directories(removed.directories);
  response.set_bytes(removed.bytes);
  return response;
}

absl::StatusOr<v1::PruneResponse::Removed> Retention::RemovePoints(const Due& due, db::Micros now,
                                                                   bool dry_run) {
  v1::PruneResponse::Removed removed;
  removed.set_rule(due.rule);
  removed.set_studies(static_cast<int64_t>(due.studies.size()));
  removed.set_points(due.points.points);
  for (const int64_t id : due.studies) {
    if (dry_run) break;
    const absl::Status status = db::BeginRemoval(store_, Removal::kPoints, id, now);
    // The study was retried after FindDue listed it.
    if (absl::IsFailedPrecondition(status)) continue;
    if (!status.ok()) return status;
  }
  return removed;
}

absl::StatusOr<v1::PruneResponse::Removed> Retention::RemoveFiles(const Due& due, db::Micros now,
                                                                  bool dry_run,
                                                                  const std::function<bool()>& over) {
  v1::PruneResponse::Removed response;
  response.set_rule(due.rule);
  // Continue removals that an earlier call or process did not complete.
  auto studies = due.continues ? db::ListUnfinished(store_, due.what) : std::vector<int64_t>();
  if (!studies.ok()) return studies.status();
  const std::set<int64_t> unfinished(studies->begin(), studies->end());
  for (const int64_t id : due.studies) {
    if (!unfinished.contains(id)) studies->push_back(id);
  }
  if (studies->empty()) return response;
  auto files = RunFiles::Open(options_.runs_dir, options_.agents);
  if (!files.ok()) return files.status();
  FilesRemoved removed;
  for (const int64_t id : *studies) {
    if (over() || stop_.stopped()) break;
    db::Micros until = now;
    bool whole = false;  // whether a later removal of the directories includes these logs
    if (unfinished.contains(id)) {
      const auto marks = db::GetRemoved(store_, id);
      if (!marks.ok()) return marks.status();
      until = due.what == Removal::kLogs ? marks->logs : marks->directories;
      whole = due.what == Removal::kLogs && marks->directories >= until;
    } else {
      // Look for a directory first. If all are missing or left alone, nothing is recorded as removed.
      FilesRemoved found;
      const absl::Status looked = RemoveFilesOf(
          *files, due.what, id, now, /*dry_run=*/true, [&] { return found.directories > 0 || over(); },
          found);
      // The search was interrupted before it found a directory.
      if (found.directories == 0 && (over() || stop_.stopped())) break;
      if (looked.ok() && found.directories == 0) {
        removed.left += found.left;
        if (found.left > 0) removed.why_left = std::move(found.why_left);
        continue;
      }
      const absl::Status begun = dry_run ? absl::OkStatus() : db::BeginRemoval(store_, due.what, id, now);
      if (absl::IsFailedPrecondition(begun)) continue;
      if (!begun.ok()) return begun;
    }
    const int64_t seen_before = removed.directories + removed.left;
    absl::Status status = RemoveFilesOf(*files, due.what, id, until, dry_run, over, removed);
    // The directory of the study is removed after EndRemoval. Without it, a removal that continues does not
    // count as complete, because the filesystem of the runs may not be mounted.
    const bool found_any = removed.directories + removed.left > seen_before;
    if (status.ok() && unfinished.contains(id) && !found_any && !whole) {
      const absl::StatusOr<bool> present = files->HasStudy(id);
      if (present.ok() && !*present) continue;
      status = present.status();
    }
    response.set_studies(response.studies() + 1);
    if (!status.ok() && files->Waits(id)) continue;  // reported below
    if (!status.ok()) {
      spdlog::warn("retention: {} of study {} remain, and are tried again: {}", What(due.what), id,
                   std::string(status.message()));
    } else if (!dry_run && !over() && !stop_.stopped()) {
      if (absl::Status ended = db::EndRemoval(store_, due.what, id); !ended.ok()) return ended;
      if (due.what == Removal::kDirectories) files->RemoveEmptyStudy(id);
    }
  }
  LogLeft(removed);
  if (const std::set<std::string>& users = files->waiting(); !users.empty()) {
    const std::string waiting = absl::StrCat("waiting for the agents of ", absl::StrJoin(users, ", "));
    response.set_rule(absl::StrCat(due.rule, " (", waiting, ")"));
    if (!dry_run) spdlog::info("retention: {}: {}", due.rule, waiting);
  }
  response.set_directories(removed.directories);
  response.set_bytes(removed.bytes);
  return response;
}

absl::Status Retention::RemoveFilesOf(RunFiles& files, Removal removal, int64_t study, db::Micros until,
                                      bool dry_run, const std::function<bool()>& over,
                                      FilesRemoved& removed) {
  const FilesOf what = removal == Removal::kLogs ? FilesOf::kLogs : FilesOf::kEverything;
  absl::Status first_error;
  const std::function<bool()> cancelled = [&] { return over() || stop_.stopped(); };
  std::set<int64_t> runs;  // runs whose checkpoints are already removed or counted
  for (int64_t after = 0; !over() && !stop_.stopped();) {
    const auto attempts = db::ListEndedAttempts(store_, study, until, after, kAttemptsPerRead);
    // If the study was retried, the rest is removed when the study is final again.
    if (!attempts.ok()) return attempts.status();
    for (const db::EndedAttempt& attempt : *attempts) {
      if (over() || stop_.stopped()) break;
      after = attempt.id;
      if (attempt.directory.empty()) continue;  // restored from an archive, which has no files
      first_error.Update(files.Remove(attempt.directory, study, attempt.run_id, attempt.token, what, dry_run,
                                      cancelled, removed));
      if (what != FilesOf::kEverything || !runs.insert(attempt.run_id).second) continue;
      // Ask directly before the removal, because the run may have been retried in the meantime.
      const absl::StatusOr<bool> ended = db::RunEndedBy(store_, study, attempt.run_id, until);
      if (!ended.ok()) return ended.status();
      if (!*ended) continue;
      const std::string run = attempt.directory.substr(0, attempt.directory.rfind('/'));
      // The run may be retried during the removal: between two files, or between two requests to an agent.
      const std::function<bool()> retried = [&] {
        return cancelled() || !db::RunEndedBy(store_, study, attempt.run_id, until).value_or(false);
      };
      first_error.Update(files.Remove(absl::StrCat(run, "/", db::kCheckpointsName), study, attempt.run_id,
                                      db::kCheckpointsName, what, dry_run, retried, removed));
    }
    if (attempts->empty()) break;
  }
  return first_error;
}

}  // namespace scalelab::server
