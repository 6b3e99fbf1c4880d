#include "server/core/outcome.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/metric_ranges.h"
#include "server/core/convert.h"

namespace scalelab::server {
namespace {

// The finish metrics of an attempt. Refuses values that are impossible for a metric.
class FinishMetrics {
 public:
  explicit FinishMetrics(const std::vector<RankState>& ranks) : ranks_(ranks) {}

  // Returns the value of rank 0.
  std::optional<double> First(const char* key) { return Usable(0, key); }
  std::optional<double> Largest(const char* key) {
    std::optional<double> largest;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto value = Usable(rank, key);
      if (value && (!largest || *value > *largest)) largest = value;
    }
    return largest;
  }
  // Returns the values of all ranks; nothing if one of them has none.
  std::vector<double> All(const char* key) {
    std::vector<double> all;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto value = Usable(rank, key);
      if (!value.has_value()) return {};
      all.push_back(*value);
    }
    return all;
  }
  // Returns the mean over all ranks; nothing if one of them has no value.
  std::optional<double> Mean(const char* key) {
    const std::vector<double> all = All(key);
    if (all.empty()) return std::nullopt;
    return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  }
  // Returns the values of the ranks that have one.
  std::vector<double> Known(const char* key) {
    std::vector<double> known;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (const auto value = Usable(rank, key)) known.push_back(*value);
    }
    return known;
  }
  const std::vector<std::string>& refused() const { return refused_; }

 private:
  std::optional<double> Usable(size_t rank, const char* key) {
    const auto it = ranks_[rank].finish_metrics.find(key);
    if (it == ranks_[rank].finish_metrics.end()) return std::nullopt;
    const std::string why = WhyImpossible(key, it->second);
    if (why.empty()) return it->second;
    refused_.push_back(absl::StrCat(key, " of rank ", rank, " ", why));
    return std::nullopt;
  }

  const std::vector<RankState>& ranks_;
  std::vector<std::string> refused_;
};

// Returns the times that the ranks report to explain the throughput of the run.
db::RunTimes TimesOf(const db::AttemptRow& attempt, size_t ranks, FinishMetrics& metrics) {
  db::RunTimes times;
  times.nodes = attempt.nodes;
  const std::vector<double> step = metrics.All("run/mean_step_s"), data = metrics.All("run/data_s");
  std::vector<double> exposed = metrics.All("run/comm_exposed_s");
  if (ranks == 1 && exposed.empty()) exposed = {0};  // a single rank does not wait for gradients
  // All returns the value of each rank, or nothing.
  for (size_t rank = 0; rank < std::min({step.size(), exposed.size(), data.size()}); ++rank)
    times.ranks.push_back({step[rank], exposed[rank], data[rank]});
  times.comm_total = metrics.Mean("run/comm_total_s");
  times.rank_norm = metrics.Mean("run/rank_gradient_norm2");
  times.mean_norm = metrics.First("run/mean_gradient_norm2");
  if (!times.rank_norm || !times.mean_norm) times.rank_norm = times.mean_norm = std::nullopt;
  times.samples_to_accuracy = metrics.First("run/samples_to_accuracy");
  return times;
}

// Combines the metrics that the first rank of each node reports about the devices of the node. Leaves out a
// metric if a node does not report it.
void CombineNodes(const db::AttemptRow& attempt, FinishMetrics& metrics, std::map<std::string, double>& run) {
  const size_t nodes = std::ranges::count(attempt.nodes, ',') + 1;
  const auto combine = [&](const char* key, auto&& of) {
    const std::vector<double> values = metrics.Known(key);
    run.erase(key);
    if (values.size() >= nodes) run[key] = of(values);
  };
  const auto sum = [](const std::vector<double>& of) { return std::accumulate(of.begin(), of.end(), 0.0); };
  const auto mean = [&](const std::vector<double>& of) { return sum(of) / static_cast<double>(of.size()); };
  const auto largest = [](const std::vector<double>& of) { return *std::ranges::max_element(of); };
  for (const char* key : {"run/energy_joules", "run/joules_per_sample"}) combine(key, sum);
  for (const char* key : {"run/gpu_utilisation", "run/gpu_power_w", "run/gpu_clock_mhz", "run/gpu_throttled"})
    combine(key, mean);
  combine("run/gpu_memory_bytes", largest);
}

Outcome Failed(db::Cause cause, std::string message) {
  return {db::AttemptState::kFailed, cause, std::move(message), ""};
}

// FNV-1a, 64 bits (Fowler, Noll, Vo).
uint64_t Fnv1a(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

}  // namespace

Outcome Judge(const std::vector<RankState>& ranks, const v1::SynchronizeRequest::AttemptStatus& status,
              bool needs_finish) {
  const RankState* error = nullptr;
  for (const RankState& rank : ranks) {
    if (rank.stream.error_message.empty()) continue;
    if (error == nullptr) error = &rank;
    if (rank.stream.error_kind == "out_of_memory") {
      return Failed(db::Cause::kOutOfMemory,
                    absl::StrCat("rank ", rank.stream.rank, ": ", rank.stream.error_message));
    }
  }
  if (status.cause() != v1::Attempt::CAUSE_UNSPECIFIED) {
    return Failed(static_cast<db::Cause>(status.cause()), status.message());
  }
  if (error != nullptr) {
    return Failed(db::Cause::kTrainerError,
                  absl::StrCat("rank ", error->stream.rank, ": ", error->stream.error_message));
  }
  if (status.exit_status() != 0) {
    const std::string detail = status.message().empty() ? "" : absl::StrCat(": ", status.message());
    if (status.exit_status() > 128) {
      return Failed(db::Cause::kRankKilled,
                    absl::StrCat("ended by signal ", status.exit_status() - 128, detail));
    }
    return Failed(db::Cause::kTrainerError, absl::StrCat("exit status ", status.exit_status(), detail));
  }
  if (!needs_finish) return {db::AttemptState::kSucceeded, db::Cause::kNone, "", ""};
  std::vector<int> unfinished;
  std::string malformed;  // a malformed line, which may be the finish event
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].stream.finished) continue;
    unfinished.push_back(static_cast<int>(r));
    if (malformed.empty() && !ranks[r].stream.first_malformed.empty())
      malformed = absl::StrCat("; rank ", r, ", ", ranks[r].stream.first_malformed);
  }
  if (!unfinished.empty()) {
    return Failed(db::Cause::kNoFinish, absl::StrCat("exit status 0, but no finish event of rank ",
                                                     absl::StrJoin(unfinished, ", "), malformed));
  }
  for (size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].stream.parameter_hash != ranks[0].stream.parameter_hash) {
      return Failed(db::Cause::kParametersDiffer,
                    absl::StrCat("rank ", r, " ended with parameters ", ranks[r].stream.parameter_hash,
                                 ", rank 0 with ", ranks[0].stream.parameter_hash,
                                 ": the ranks did not stay synchronised"));
    }
  }
  return {db::AttemptState::kSucceeded, db::Cause::kNone, "",
          ranks.empty() ? "" : ranks[0].stream.parameter_hash};
}

Summary Summarize(const db::AttemptRow& attempt, const std::vector<RankState>& ranks,
                  const std::string& fingerprint, int samples_per_step) {
  db::RunSummary summary;
  summary.run_id = attempt.run_id;
  summary.attempt_id = attempt.id;
  summary.fingerprint = fingerprint;
  summary.nodes_hash = static_cast<int64_t>(Fnv1a(attempt.nodes));
  if (ranks.empty()) return {summary, ""};
  FinishMetrics metrics(ranks);
  summary.throughput = metrics.First("run/throughput");
  summary.throughput_mean = metrics.First("run/throughput_mean");
  summary.epoch_seconds = metrics.First("run/epoch_seconds");
  summary.step_seconds = metrics.First("run/step_seconds");
  summary.comm_share = metrics.First("run/comm_share");
  summary.accuracy = metrics.First("run/accuracy");
  summary.train_loss = metrics.First("run/train_loss");
  summary.time_to_accuracy = metrics.First("run/time_to_accuracy_s");
  summary.straggler_skew = metrics.First("run/straggler_skew");
  summary.cpu_utilisation = metrics.First("run/cpu_utilisation");
  summary.peak_memory = metrics.Largest("run/peak_memory_bytes");
  summary.device_memory = metrics.Largest("run/device_memory_bytes");
  summary.steps = static_cast<int64_t>(metrics.First("run/steps").value_or(0));
  summary.reported_step = ranks[0].steps.Median();
  if (!ranks[0].finish_metrics.contains("run/throughput") && summary.reported_step && samples_per_step > 0)
    summary.throughput = samples_per_step / *summary.reported_step;
  // The throughput includes the steps of all attempts, but the median includes only the steps
  // of this attempt.
  if (attempt.resumed_step > 0) summary.reported_step.reset();
  summary.metrics = ranks[0].finish_metrics;
  CombineNodes(attempt, metrics, summary.metrics);
  summary.times = TimesOf(attempt, ranks.size(), metrics);
  std::string refused = absl::StrJoin(metrics.refused(), "; ");
  if (!refused.empty())
    absl::StrAppend(&refused, metrics.refused().size() == 1 ? "; the value is" : "; these values are",
                    " not used");
  return {summary, refused};
}

std::string Fingerprint(const std::vector<v1::NodeInfo>& nodes) {
  std::set<std::string> kinds;
  for (const v1::NodeInfo& node : nodes) {
    std::string kind = absl::StrCat(node.cpu_model(), "|", node.cpus(), "|", absl::StrJoin(node.gpus(), ","));
    const std::map<std::string, std::string> software(node.software().begin(), node.software().end());
    for (const auto& [name, version] : software) absl::StrAppend(&kind, "|", name, "=", version);
    kinds.insert(std::move(kind));
  }
  return absl::StrCat(absl::Hex(Fnv1a(absl::StrJoin(kinds, "\n")), absl::kZeroPad16));
}

bool WritesCheckpoints(const v1::RunSpec& spec) {
  return spec.checkpoint_every_steps() != 0 || spec.checkpoint_every_minutes() != 0;
}

std::string CheckpointDirectory(const v1::RunSpec& spec, const std::string& attempt_directory) {
  if (!WritesCheckpoints(spec)) return "";
  return absl::StrCat(attempt_directory.substr(0, attempt_directory.rfind('/')), "/", db::kCheckpointsName);
}

bool Retries(const v1::Retry& retry, db::Cause cause) {
  if (retry.on_size() == 0) {
    return cause == db::Cause::kNodeFail || cause == db::Cause::kPreempted ||
           cause == db::Cause::kWorkerLost || cause == db::Cause::kRankKilled ||
           cause == db::Cause::kBootFail;
  }
  const std::string name =
      absl::AsciiStrToLower(v1::Attempt::Cause_Name(static_cast<v1::Attempt::Cause>(cause)));
  return std::find(retry.on().begin(), retry.on().end(), name) != retry.on().end();
}

}  // namespace scalelab::server
