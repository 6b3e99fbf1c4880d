#include "worker/output_metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "files/regular_file.h"
#include "worker/process/output_limit.h"

namespace scalelab::worker {
namespace {

using nlohmann::ordered_json;

constexpr absl::Duration kPause = absl::Milliseconds(250);
// After Finish, a file is given up when it could not be read for this long.
constexpr absl::Duration kUnreadable = absl::Minutes(1);
constexpr size_t kPartBytes = 1 << 20;
// Before a file is cut, at most this many parts are read at once, because they delay all other attempts of the worker.
constexpr int kPartsBeforeCut = 64;
// Of a longer line, only the beginning is matched.
constexpr size_t kLongestLine = 64 << 10;

std::string TextOf(const google::protobuf::Struct& fields, const char* name) {
  const auto it = fields.fields().find(name);
  return it == fields.fields().end() ? "" : it->second.string_value();
}

ordered_json Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return value;
}

std::string Line(ordered_json event) {
  ordered_json line = {{"time", absl::ToUnixMicros(absl::Now()) / 1e6}};
  line.update(event);
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputMetrics>> OutputMetrics::New(EventLoop& loop,
                                                                  const google::protobuf::Struct& extract,
                                                                  std::vector<std::string> outputs,
                                                                  std::string events) {
  std::vector<Rule> rules;
  const std::map<std::string, google::protobuf::Value> sorted(extract.fields().begin(),
                                                              extract.fields().end());
  for (const auto& [metric, value] : sorted) {
    const google::protobuf::Struct& fields = value.struct_value();
    absl::StatusOr<Pattern> pattern = Pattern::Compile(TextOf(fields, "regex"));
    if (!pattern.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("The regular expression of metric ", metric,
                                                     " is not valid: ", pattern.status().message(), "."));
    }
    static const std::map<std::string, Take> kTakes = {
        {"first", Take::kFirst}, {"max", Take::kMax}, {"min", Take::kMin}, {"mean", Take::kMean}};
    const auto take = kTakes.find(TextOf(fields, "take"));
    rules.push_back({metric, *std::move(pattern), TextOf(fields, "per") == "step",
                     take == kTakes.end() ? Take::kLast : take->second, 0, 0});
  }
  std::vector<Output> files;
  for (std::string& path : outputs) files.emplace_back().path = std::move(path);
  return std::unique_ptr<OutputMetrics>(
      new OutputMetrics(loop, std::move(rules), std::move(files), std::move(events)));
}

void OutputMetrics::Finish(bool succeeded, std::function<void(std::string)> done) {
  finishing_ = true;
  succeeded_ = succeeded;
  give_up_at_ = loop_.Now() + kUnreadable;
  done_ = std::move(done);
  loop_.Cancel(timer_);
  timer_ = loop_.After(absl::ZeroDuration(), [this] { Look(); });
}

void OutputMetrics::BeforeCut(const std::string& path, int64_t size) {
  if (timer_ == 0) return;
  for (Output& output : outputs_) {
    if (output.path != path) continue;
    for (int parts = kPartsBeforeCut; parts > 0 && ReadPart(output); --parts) {
    }
    output.cut_at = size;
  }
  // Look again right after the cut, before the file can be longer than it was.
  loop_.Cancel(timer_);
  timer_ = loop_.After(absl::ZeroDuration(), [this] { Look(); });
}

void OutputMetrics::Look() {
  timer_ = 0;
  bool more = false, failed = false;
  for (Output& output : outputs_) {
    more = ReadPart(output) || more;
    failed = failed || !output.error.empty();
  }
  // Without the rest of the output, an earlier match would count as the last one.
  const bool retry = failed && succeeded_ && loop_.Now() < give_up_at_;
  if (!more && finishing_ && !retry) return End();
  timer_ = loop_.After(more ? absl::ZeroDuration() : kPause, [this] { Look(); });
}

// Reads the next part of a file. Returns whether there may be more.
bool OutputMetrics::ReadPart(Output& output) {
  const absl::StatusOr<int> opened = OpenRegularFile(output.path, O_RDONLY);
  output.error = absl::IsUnavailable(opened.status()) ? std::string(opened.status().message()) : "";
  if (!opened.ok()) return false;
  const int fd = *opened;
  struct stat found {};
  // A file that became shorter was cut by the limit of output (process/output_limit.h). Continue at the cut, because
  // there may be new output after it.
  if (fstat(fd, &found) == 0 && found.st_size < output.at) {
    output.at = std::min<int64_t>(output.cut_at, found.st_size);
    output.unread.clear();
  }
  std::string part(kPartBytes, '\0');
  const ssize_t count = pread(fd, part.data(), part.size(), output.at);
  if (count < 0) output.error = strerror(errno);
  close(fd);
  if (count <= 0) return false;
  output.at += count;
  output.unread.append(part, 0, static_cast<size_t>(count));
  TakeLines(output);
  return static_cast<size_t>(count) == kPartBytes;
}

void OutputMetrics::TakeLines(Output& output) {
  std::string& unread = output.unread;
  size_t begin = 0;
  // A carriage return ends a line too: progress bars overwrite their line.
  for (size_t end; (end = unread.find_first_of("\n\r", begin)) != std::string::npos; begin = end + 1)
    TakeLine(absl::string_view(unread).substr(begin, end - begin));
  unread.erase(0, begin);
  if (unread.size() > kLongestLine) unread.resize(kLongestLine);
  Append(std::exchange(appended_, {}));
}

void OutputMetrics::TakeLine(absl::string_view line) {
  if (absl::StartsWith(line, kCutMark)) return;
  line = line.substr(0, kLongestLine);
  std::map<int64_t, ordered_json> steps;
  for (Rule& rule : rules_) {
    const std::optional<Pattern::Match> match = rule.pattern.Find(line);
    if (!match) continue;
    if (rule.per_step) {
      ordered_json& metrics = steps[match->step.value_or(rule.matches)];
      metrics[rule.metric] = Number(match->value);
    }
    Add(match->value, &rule);
  }
  for (auto& [step, metrics] : steps)
    appended_ += Line({{"event", "step"}, {"epoch", 0}, {"step", step}, {"metrics", std::move(metrics)}});
}

void OutputMetrics::Add(double value, Rule* rule) {
  const bool first = rule->matches++ == 0;
  switch (rule->take) {
    case Take::kLast:
      rule->value = value;
      return;
    case Take::kFirst:
      if (first) rule->value = value;
      return;
    case Take::kMax:
      rule->value = first ? value : std::max(rule->value, value);
      return;
    case Take::kMin:
      rule->value = first ? value : std::min(rule->value, value);
      return;
    case Take::kMean:
      rule->value += value;
      return;
  }
}

// The program has ended, and its output was read.
void OutputMetrics::End() {
  for (Output& output : outputs_) {
    if (output.unread.empty()) continue;
    output.unread += '\n';  // the last line has no line break
    TakeLines(output);
  }
  if (succeeded_) {
    for (const Output& output : outputs_) {
      if (output.error.empty() || !problem_.empty()) continue;
      problem_ = absl::StrCat("Cannot read '", output.path, "', so metrics may be missing: ", output.error,
                              "; check the filesystem of the coordinator's --runs.");
    }
    ordered_json metrics = ordered_json::object();
    for (const Rule& rule : rules_) {
      if (rule.matches == 0) {
        if (problem_.empty())
          problem_ = absl::StrCat("No line that rank 0 wrote matches the regular expression of metric ",
                                  rule.metric, "; compare measure.extract with `scalelab run logs`.");
        continue;
      }
      if (rule.per_step) continue;
      const bool mean = rule.take == Take::kMean;
      metrics[rule.metric] = Number(mean ? rule.value / static_cast<double>(rule.matches) : rule.value);
    }
    Append(Line({{"event", "finish"}, {"metrics", std::move(metrics)}}));
  }
  const auto done = std::move(done_);
  const std::string problem = std::move(problem_);
  done(problem);  // may destroy this object
}

void OutputMetrics::Append(const std::string& lines) {
  if (lines.empty() || !problem_.empty()) return;
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int fd = open(events_.c_str(), kFlags, 0644);
  const ssize_t count = fd < 0 ? -1 : write(fd, lines.data(), lines.size());
  int error = count < 0 ? errno : count < static_cast<ssize_t>(lines.size()) ? ENOSPC : 0;
  // A network filesystem may report a failed write only when the file is closed.
  if (fd >= 0 && close(fd) != 0 && error == 0) error = errno;
  if (error != 0) problem_ = absl::StrCat("Cannot write '", events_, "': ", strerror(error), ".");
}

}  // namespace scalelab::worker
