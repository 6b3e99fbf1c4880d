#include "server/identity/audit_log.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/time/clock.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kLongestBackoff = absl::Minutes(1);

// Writes a line to the log of the process for each study that was submitted, cancelled or deleted, and each
// cancelled run.
void LogStudies(const std::vector<db::AuditRow>& rows) {
  constexpr std::string_view kLogged[] = {"CreateStudy", "CancelStudy", "CancelRun", "DeleteStudy"};
  for (const db::AuditRow& row : rows) {
    if (row.refused || std::find(std::begin(kLogged), std::end(kLogged), row.action) == std::end(kLogged))
      continue;
    spdlog::info("{} {} by {} from {}, identified by {}{}", row.action, row.target, row.user, row.address,
                 row.source, row.count > 1 ? absl::StrCat(", ", row.count, " times") : "");
  }
}

}  // namespace

AuditLog::AuditLog(db::AccessStore& store, std::function<absl::Status()> also, AuditLimits limits)
    : store_(store), also_(std::move(also)), limits_(limits) {
  others_.count = 0;
}

AuditLog::~AuditLog() { Stop(); }

void AuditLog::Start() {
  thread_ = std::thread([this] { Run(); });
}

void AuditLog::Stop() {
  {
    SteadyMutexLock lock(&mutex_);
    stopping_ = true;
    mutex_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void AuditLog::Add(db::AuditRow row) {
  SteadyMutexLock lock(&mutex_);
  row.refused ? AddRefused(std::move(row)) : AddChange(std::move(row));
}

void AuditLog::AddChange(db::AuditRow row) {
  ChangeKey key(row.user, row.source, row.address, row.action, row.target, row.result, row.detail);
  if (const auto equal = change_at_.find(key); equal != change_at_.end()) {
    db::AuditRow& first = changes_[equal->second];
    ++first.count;
    first.time = row.time;
    return;
  }
  // This number of rows is only reached if the audit log cannot be written for some time.
  if (changes_.size() + writing_.size() >= limits_.pending) {
    ++lost_;
    return;
  }
  change_at_.emplace(std::move(key), changes_.size());
  changes_.push_back(std::move(row));
}

void AuditLog::AddRefused(db::AuditRow row) {
  refused_since_ = std::min(refused_since_, Clock::System().Steady());
  Key key(row.user, row.source, row.address, row.action, row.result);
  if (const auto equal = refused_.find(key); equal != refused_.end()) {
    ++equal->second.count;
    equal->second.time = row.time;
    return;
  }
  const int64_t minute = row.time / 60'000'000;
  if (minute != std::exchange(minute_, minute)) in_minute_ = 0;
  if (in_minute_ < limits_.refusals_per_minute && writing_.size() < limits_.pending) {
    ++in_minute_;
    refused_.emplace(std::move(key), std::move(row));
    return;
  }
  const int64_t count = others_.count + 1;
  others_ = db::AuditRow();
  others_.time = row.time;
  others_.action = "(other calls)";
  others_.result = row.result;
  others_.detail = "further refused calls, of several callers or actions";
  others_.refused = true;
  others_.count = count;
}

void AuditLog::Collect(bool all) {
  std::move(changes_.begin(), changes_.end(), std::back_inserter(writing_));
  changes_.clear();
  change_at_.clear();
  if (all || Clock::System().Steady() - refused_since_ >= limits_.refusal_period) {
    for (auto& [key, row] : refused_) writing_.push_back(std::move(row));
    refused_.clear();
    if (others_.count > 0) writing_.push_back(std::exchange(others_, db::AuditRow()));
    others_.count = 0;
    refused_since_ = absl::InfiniteDuration();
  }
  // Sort the rows by time, because readers list them in the order in which they are written.
  std::stable_sort(writing_.begin(), writing_.end(),
                   [](const db::AuditRow& a, const db::AuditRow& b) { return a.time < b.time; });
}

absl::Status AuditLog::Flush(absl::Duration limit) {
  SteadyMutexLock lock(&mutex_);
  const int64_t asked = ++flush_asked_;
  mutex_.SignalAll();
  const auto done = [this, asked] {
    mutex_.AssertHeld();
    return flushed_ >= asked;
  };
  if (mutex_.AwaitWithTimeout(done, limit)) return absl::OkStatus();
  return absl::UnavailableError(
      "the audit log cannot be written at present; the log of scalelabd has the reason");
}

void AuditLog::Run() {
  absl::Duration wait = limits_.period;
  while (true) {
    bool stopping = false;
    int64_t asked = 0, lost = 0;
    std::vector<db::AuditRow> rows;
    {
      SteadyMutexLock lock(&mutex_);
      // After an error, wait the full time unless the log is ending. Otherwise a caller of Flush would cause
      // a busy loop.
      const bool after_error = wait > limits_.period;
      const auto wakes_up = [&] {
        mutex_.AssertHeld();
        return after_error ? stopping_ : WakesUp();
      };
      mutex_.AwaitWithTimeout(wakes_up, wait);
      stopping = stopping_;
      asked = flush_asked_;
      Collect(WakesUp());
      rows = writing_;
      lost = std::exchange(lost_, 0);
    }
    if (lost > 0)
      spdlog::error("the audit log has lost {} entries of changes, because too many were not written yet",
                    lost);
    absl::Status status = rows.empty() ? absl::OkStatus() : store_.AppendAudit(rows);
    if (status.ok()) {
      LogStudies(rows);
      SteadyMutexLock lock(&mutex_);
      writing_.clear();
      flushed_ = asked;
      mutex_.SignalAll();
    }
    if (absl::Status also = also_(); status.ok()) status = also;
    if (!status.ok()) spdlog::error("the audit log cannot be written, trying again: {}", status.ToString());
    if (stopping) return;
    wait = status.ok() ? limits_.period : std::min(2 * wait, kLongestBackoff);
  }
}

}  // namespace scalelab::server
