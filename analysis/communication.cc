#include "analysis/communication.h"

#include <limits>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "catalog/engines.h"
#include "catalog/metric_ranges.h"
#include "scalelab/v1/run.pb.h"
#include "study/communication.h"

namespace scalelab::analysis {
namespace {

// Explains why a cell has no steps.
std::string WhyNone(absl::string_view name, const std::vector<const db::CurveRow*>& rows,
                    const std::string& fingerprint) {
  int pending = 0, failed = 0, out_of_memory = 0, elsewhere = 0, cancelled = 0;
  for (const db::CurveRow* row : rows) {
    if (!db::IsFinal(row->state)) ++pending;
    if (row->state == db::RunState::kFailed) ++failed;
    if (row->state == db::RunState::kCancelled) ++cancelled;
    if (row->cause == db::Cause::kOutOfMemory) ++out_of_memory;
    if (row->state == db::RunState::kSucceeded && row->fingerprint != fingerprint) ++elsewhere;
  }
  if (pending > 0) return absl::StrCat(name, " has no result yet");
  if (elsewhere > 0) return absl::StrCat(name, " ran on other hardware or software");
  if (out_of_memory > 0) return absl::StrCat(name, " ran out of memory");
  if (failed > 0) return absl::StrCat(failed == 1 ? "the run of " : "every run of ", name, " failed");
  if (cancelled > 0) return absl::StrCat(name, " was cancelled");
  return absl::StrCat(name, " measured no step");
}

// Returns a - b for each block that both have.
std::vector<double> Differences(const Sample& a, const Sample& b) {
  const std::vector<Sample> common = InCommonBlocks({&a, &b});
  std::vector<double> differences;
  for (size_t i = 0; i < common[0].size(); ++i)
    differences.push_back(common[0].value[i] - common[1].value[i]);
  return differences;
}

// Returns the share of the communication cost that is hidden, or nothing if the total cost is
// not significantly above 0. `common` has three samples of the same blocks: the cell,
// native/serial and native/none.
std::optional<v1::Estimate> HiddenShare(const std::vector<Sample>& common, const BlockBootstrap& bootstrap) {
  const size_t n = common[0].size();
  const std::vector<double> exposed = Differences(common[0], common[2]);
  const std::vector<double> total = Differences(common[1], common[2]);
  if (Mean(total) <= 0) return std::nullopt;
  const auto interval = bootstrap.RatioOfDifferences(common[0], common[1], common[2]);
  if (n > 1 && !interval.has_value()) return std::nullopt;
  std::vector<double> shares;
  for (size_t i = 0; i < n; ++i) {
    if (total[i] != 0) shares.push_back(1 - exposed[i] / total[i]);
  }
  v1::Estimate hidden;
  hidden.set_mean(1 - Mean(exposed) / Mean(total));
  hidden.set_median(Median(shares));
  if (shares.size() > 1) hidden.set_stddev(StandardDeviation(shares));
  if (interval.has_value()) {
    hidden.set_low(1 - interval->high);
    hidden.set_high(1 - interval->low);
  }
  return hidden;
}

}  // namespace

std::vector<Comparison> FindComparisons(const std::vector<db::CellRow>& cells, const CellList& parameters) {
  std::vector<Comparison> comparisons(cells.size());
  std::unordered_map<std::string, size_t> others;
  for (size_t i = 0; i < cells.size(); ++i) {
    const v1::RunSpec spec = parameters.SpecWithoutCommand(i);
    comparisons[i].baseline = spec.communication_baseline();
    if (!cells[i].excluded && IsBaselineEngine(spec.engine()))
      others.emplace(ComparisonKey(spec, spec.engine()), i);
  }
  for (size_t i = 0; i < cells.size(); ++i) {
    const v1::RunSpec spec = parameters.SpecWithoutCommand(i);
    if (cells[i].excluded || spec.ranks() < 2 || !OverlapsCommunication(spec.engine())) continue;
    const auto find = [&](absl::string_view engine) {
      const auto it = others.find(ComparisonKey(spec, engine));
      return it == others.end() ? std::nullopt : std::optional(it->second);
    };
    comparisons[i].measured = true;
    comparisons[i].unsynchronised = find(UnsynchronisedEngine().name);
    comparisons[i].serial = find(SerialEngine().name);
  }
  return comparisons;
}

Steps StepsOf(int global_batch, absl::string_view name, const std::vector<const db::CurveRow*>& rows,
              const std::string& fingerprint, const std::vector<int>& block_of_repeat) {
  static const MetricRange& range = RangeOf("run/throughput");
  Steps steps;
  for (const db::CurveRow* row : rows) {
    if (row->state != db::RunState::kSucceeded || row->fingerprint != fingerprint || row->repeat < 0 ||
        !range.Contains(row->throughput.value_or(0))) {
      continue;
    }
    steps.seconds.block.push_back(block_of_repeat[row->repeat]);
    // Throughput is defined as the global batch over the median step.
    steps.seconds.value.push_back(global_batch / *row->throughput);
  }
  if (steps.seconds.size() == 0) steps.missing = WhyNone(name, rows, fingerprint);
  return steps;
}

v1::CommunicationCost CompareSteps(const Steps& cell, const Steps& unsynchronised, const Steps& serial,
                                   const BlockBootstrap& bootstrap) {
  v1::CommunicationCost cost;
  const auto miss = [&](absl::string_view what, absl::string_view why) {
    if (cost.missing().empty()) cost.set_missing(absl::StrCat("no ", what, ": ", why));
  };
  if (!unsynchronised.missing.empty()) {
    miss("communication cost", unsynchronised.missing);
    return cost;
  }
  const auto mean_of = [&](const std::vector<double>& seconds) {
    return EstimateMean(seconds, bootstrap.critical(), -kNoLimit, kNoLimit);
  };
  const std::vector<double> exposed = Differences(cell.seconds, unsynchronised.seconds);
  const std::vector<double> total = Differences(serial.seconds, unsynchronised.seconds);
  constexpr char kNoBlock[] = "no repeat has results of both this cell and native/none";
  cost.set_n(static_cast<int>(exposed.size()));
  if (!exposed.empty()) *cost.mutable_exposed() = mean_of(exposed);
  if (!total.empty()) *cost.mutable_total() = mean_of(total);
  if (exposed.empty())
    miss("exposed and hidden communication", cell.missing.empty() ? kNoBlock : cell.missing);
  if (total.empty())
    miss("total and hidden communication", serial.missing.empty()
                                               ? "no repeat has results of both native/serial and native/none"
                                               : serial.missing);
  if (exposed.empty() || total.empty()) return cost;
  const std::vector<Sample> common =
      InCommonBlocks({&cell.seconds, &serial.seconds, &unsynchronised.seconds});
  if (common[0].size() == 0) {
    miss("hidden communication", "no repeat has results of this cell, native/none and native/serial");
  } else if (auto hidden = HiddenShare(common, bootstrap)) {
    *cost.mutable_hidden() = *std::move(hidden);
  } else {
    miss("hidden communication",
         "the total is not significantly above 0; increase the repeats or the measured steps");
  }
  return cost;
}

}  // namespace scalelab::analysis
