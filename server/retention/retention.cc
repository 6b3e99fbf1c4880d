#include "server/retention/retention.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/status.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

using db::Removal;

constexpr int kAttemptsPerRead = 500;
// Pause between two transactions, so that other commits do not wait for long.
constexpr absl::Duration kBetweenPieces = absl::Milliseconds(5);

std::string SizeText(int64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

std::string What(Removal what) {
  return what == Removal::kPoints ? "points" : what == Removal::kLogs ? "logs" : "attempt directories";
}

}  // namespace

Retention::Retention(RetentionOptions options, db::Store& store)
    : options_(std::move(options)), store_(store), rules_(options_.rules) {
  thread_ = std::thread([this] { Run(); });
}

Retention::~Retention() { Stop(absl::InfiniteDuration()); }

bool Retention::Stop(absl::Duration grace) {
  bool ended = true;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (!thread_.joinable()) return true;
    ended = mutex_.AwaitWithTimeout(absl::Condition(&ended_), grace);
  }
  if (ended)
    thread_.join();
  else
    thread_.detach();
  return ended;
}

void Retention::SetRules(const RetentionRules& rules) {
  absl::MutexLock lock(&mutex_);
  rules_ = rules;
}

RetentionRules Retention::rules() const {
  absl::MutexLock lock(&mutex_);
  return rules_;
}

bool Retention::Stopping() {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

void Retention::Run() {
  absl::Duration wait = options_.first;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), wait)) {
        ended_ = true;
        return;
      }
    }
    wait = options_.period;
    if (rules().empty()) continue;
    const auto pruned = Prune(/*dry_run=*/false, [this] { return Stopping(); });
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
  const std::unique_lock<std::mutex> work(at_work_, std::try_to_lock);
  if (!work.owns_lock()) {
    return MakeError(absl::StatusCode::kUnavailable, "PRUNE_AT_WORK",
                     "retention is being applied already; try again in a minute");
  }
  const db::Micros now = absl::ToUnixMicros(options_.now());
  v1::PruneResponse response;
  const auto before = db::GetDatabaseSize(store_);
  if (!before.ok()) return before.status();
  response.set_database_bytes_before(before->bytes);
  const auto due = FindDue(rules(), now);
  if (!due.ok()) return due.status();
  for (const Due& rule : *due) {
    const auto removed = rule.what == Removal::kPoints ? RemovePoints(rule, now, dry_run)
                                                       : RemoveFiles(rule, now, dry_run, over);
    if (!removed.ok()) return removed.status();
    *response.add_removed() = *removed;
  }
  while (!dry_run && !over() && !Stopping()) {
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
  auto studies = db::ListUnfinished(store_, due.what);
  if (!studies.ok()) return studies.status();
  const std::set<int64_t> unfinished(studies->begin(), studies->end());
  for (const int64_t id : due.studies) {
    if (!unfinished.contains(id)) studies->push_back(id);
  }
  if (studies->empty()) return response;
  auto files = AttemptFiles::Open(options_.runs_dir);
  if (!files.ok()) return files.status();
  FilesRemoved removed;
  for (const int64_t id : *studies) {
    if (over() || Stopping()) break;
    db::Micros until = now;
    if (unfinished.contains(id)) {
      const auto marks = db::GetRemoved(store_, id);
      if (!marks.ok()) return marks.status();
      until = due.what == Removal::kLogs ? marks->logs : marks->directories;
    } else if (!dry_run) {
      const absl::Status begun = db::BeginRemoval(store_, due.what, id, now);
      if (absl::IsFailedPrecondition(begun)) continue;
      if (!begun.ok()) return begun;
    }
    const absl::Status status = RemoveFilesOf(*files, due, id, until, dry_run, over, removed);
    response.set_studies(response.studies() + 1);
    if (!status.ok()) {
      spdlog::warn("retention: {} of study {} remain, and are tried again: {}", What(due.what), id,
                   std::string(status.message()));
    } else if (!dry_run && !over() && !Stopping()) {
      if (absl::Status ended = db::EndRemoval(store_, due.what, id); !ended.ok()) return ended;
    }
  }
  if (removed.left > 0)
    spdlog::warn("retention: left the directories of {} attempts alone; the last: {}", removed.left,
                 removed.why_left);
  response.set_directories(removed.directories);
  response.set_bytes(removed.bytes);
  return response;
}

absl::Status Retention::RemoveFilesOf(AttemptFiles& files, const Due& due, int64_t study, db::Micros until,
                                      bool dry_run, const std::function<bool()>& over,
                                      FilesRemoved& removed) {
  const FilesOf what = due.what == Removal::kLogs ? FilesOf::kLogs : FilesOf::kEverything;
  absl::Status first_error;
  for (int64_t after = 0; !over() && !Stopping();) {
    const auto attempts = db::ListEndedAttempts(store_, study, until, after, kAttemptsPerRead);
    // If the study was retried, the rest is removed when the study is final again.
    if (!attempts.ok()) return attempts.status();
    for (const db::EndedAttempt& attempt : *attempts) {
      after = attempt.id;
      if (attempt.directory.empty()) continue;  // restored from an archive, which has no files
      first_error.Update(
          files.Remove(attempt.directory, study, attempt.run_id, attempt.token, what, dry_run, removed));
      if (what != FilesOf::kEverything) continue;
      const std::string run = attempt.directory.substr(0, attempt.directory.rfind('/'));
      first_error.Update(files.Remove(absl::StrCat(run, "/", db::kCheckpointsName), study, attempt.run_id,
                                      db::kCheckpointsName, what, dry_run, removed));
    }
    if (attempts->empty()) break;
  }
  return first_error;
}

}  // namespace scalelab::server
