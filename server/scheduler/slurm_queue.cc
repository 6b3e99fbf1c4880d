#include "server/scheduler/slurm_queue.h"

#include <sys/wait.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace scalelab::server {
namespace {

constexpr int kQueueColumns = 10;

bool All(absl::string_view text, absl::string_view others) {
  return std::all_of(text.begin(), text.end(), [&](unsigned char c) {
    return absl::ascii_isalnum(c) || others.find(static_cast<char>(c)) != absl::string_view::npos;
  });
}

// Parses an exit status: squeue prints that of wait(), sacct prints "status:signal".
bool ParseExit(absl::string_view text, QueueRow* row) {
  int raw = 0;
  if (absl::SimpleAtoi(text, &raw)) {
    row->exit_code = WIFEXITED(raw) ? WEXITSTATUS(raw) : 0;
    row->signal = WIFSIGNALED(raw) ? WTERMSIG(raw) : 0;
    return raw >= 0;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  return parts.size() == 2 && absl::SimpleAtoi(parts[0], &row->exit_code) &&
         absl::SimpleAtoi(parts[1], &row->signal);
}

std::optional<QueueRow> ParseRow(absl::string_view line, uid_t uid, bool* other_user) {
  // The name is the last column, because it may contain separators.
  const std::vector<absl::string_view> f = absl::StrSplit(line, absl::MaxSplits('|', kQueueColumns - 1));
  if (f.size() != kQueueColumns) return std::nullopt;
  int64_t owner = -1, seconds = 0;
  if (!absl::SimpleAtoi(f[1], &owner) || owner < 0) return std::nullopt;
  *other_user = owner != static_cast<int64_t>(uid);
  QueueRow row;
  row.id = std::string(f[0]);
  const std::vector<absl::string_view> state = absl::StrSplit(f[2], absl::MaxSplits(' ', 2));
  row.slurm_state = std::string(state[0]);  // sacct: "CANCELLED by 1000"
  if (state.size() == 3 && state[1] == "by") row.cancelled_by = std::string(state[2]);
  int64_t preempted = 0;
  row.preempted = state.size() == 2 && absl::SimpleAtoi(state[1], &preempted);
  if (row.id.empty() || !All(row.id, "_[]-,%+") || row.slurm_state.empty() || !All(row.slurm_state, "_+") ||
      !All(row.cancelled_by, "") || !ParseExit(f[4], &row)) {
    return std::nullopt;
  }
  if (f[3] != "None") row.reason = Printable(f[3]);
  if (absl::SimpleAtoi(f[5], &seconds)) row.end = absl::FromUnixSeconds(seconds);
  row.used = ParseSlurmDuration(f[6]).value_or(absl::ZeroDuration());
  if (absl::EqualsIgnoreCase(f[6], "INVALID")) row.used = absl::ZeroDuration();
  row.limit = ParseSlurmDuration(f[7]).value_or(absl::InfiniteDuration());
  if (!absl::StartsWith(f[8], "None") && f[8] != "(null)") row.nodes = Printable(f[8], 1000);
  row.name = std::string(f[9]);
  return row;
}

int64_t Number(const QueueRow& row) {
  int64_t number = 0;
  return absl::SimpleAtoi(row.id, &number) ? number : 0;
}

}  // namespace

Queue ParseQueue(absl::string_view text, uid_t uid) {
  Queue queue;
  queue.incomplete = !text.empty() && text.back() != '\n';
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    bool other_user = false;
    std::optional<QueueRow> row = ParseRow(line, uid, &other_user);
    if (!row) {
      if (queue.malformed++ == 0) queue.first_malformed = Printable(line);
      absl::StrAppend(&queue.malformed_lines, line, "\n");
      continue;
    }
    ++queue.valid;
    if (other_user || !IsToken(row->name)) continue;
    std::vector<QueueRow>& of_name = queue.jobs[row->name];
    of_name.push_back(*std::move(row));
  }
  for (auto& [name, rows] : queue.jobs) {
    std::stable_sort(rows.begin(), rows.end(),
                     [](const QueueRow& a, const QueueRow& b) { return Number(a) < Number(b); });
  }
  return queue;
}

std::optional<std::string> ParseSubmitted(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  if (lines.empty() || text.back() != '\n') return std::nullopt;  // a truncated number would be another id
  const std::vector<absl::string_view> parts = absl::StrSplit(lines.back(), ';');
  const bool digits = !parts[0].empty() && parts[0].size() <= 12 &&
                      std::all_of(parts[0].begin(), parts[0].end(), absl::ascii_isdigit);
  if (!digits || parts.size() > 2) return std::nullopt;
  return std::string(parts[0]);
}

std::optional<absl::Duration> ParseSlurmDuration(absl::string_view text) {
  for (absl::string_view word : {"UNLIMITED", "INFINITE", "NOT_SET", "PARTITION_LIMIT", "N/A", "INVALID"}) {
    if (absl::EqualsIgnoreCase(text, word)) return absl::InfiniteDuration();
  }
  int64_t days = 0, seconds = 0;
  if (const size_t dash = text.find('-'); dash != absl::string_view::npos) {
    if (!absl::SimpleAtoi(text.substr(0, dash), &days)) return std::nullopt;
    text.remove_prefix(dash + 1);
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() < 2 || parts.size() > 3 || days < 0 || days > 100'000) return std::nullopt;
  for (absl::string_view part : parts) {
    int number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < 0 || number > 10'000) return std::nullopt;
    seconds = seconds * 60 + number;
  }
  return absl::Seconds(days * 86400 + seconds);
}

bool IsToken(absl::string_view text) {
  return !text.empty() && text.size() <= 64 && text[0] != '-' && All(text, "-_");
}

std::string Printable(absl::string_view text, size_t limit) {
  std::string printable(text.substr(0, limit));
  std::replace_if(
      printable.begin(), printable.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  if (text.size() > limit) printable += "...";
  return printable;
}

const QueueRow& Choose(const std::vector<QueueRow>& jobs) {
  const auto rank = [](const QueueRow& row) {
    if (IsLive(row)) return row.nodes.empty() ? 2 : 0;
    return row.nodes.empty() ? 3 : 1;
  };
  return *std::min_element(jobs.begin(), jobs.end(),
                           [&](const QueueRow& a, const QueueRow& b) { return rank(a) < rank(b); });
}

}  // namespace scalelab::server
