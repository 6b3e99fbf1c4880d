#include "analysis/comparison/advise.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/comparison/advice_text.h"
#include "analysis/parallel.h"
#include "analysis/ratios.h"
#include "analysis/statistics.h"
#include "google/protobuf/util/json_util.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::Advice;
using scalelab::v1::AdvisedSize;
using scalelab::v1::Estimate;
using scalelab::v1::OpenDecision;

constexpr size_t kManyGroups = 16, kAdviceThreads = 4;

// Additional repeats that give an interval to a figure that has none.
constexpr int kForFirstInterval = 2;

enum class Answer { kNo, kUnknown, kYes };

// Returns an estimate of a monotone function of a ratio.
Estimate MapOf(const Estimate& ratio, const std::function<double(double)>& function) {
  Estimate mapped;
  mapped.set_mean(function(ratio.mean()));
  mapped.set_median(function(ratio.median()));
  if (!ratio.has_low()) return mapped;
  const double one = function(ratio.low()), other = function(ratio.high());
  mapped.set_low(std::min(one, other));
  mapped.set_high(std::max(one, other));
  return mapped;
}

Answer Above(const Estimate& estimate, double limit) {
  if (!estimate.has_low()) return Answer::kUnknown;
  if (estimate.low() >= limit) return Answer::kYes;
  return estimate.high() < limit ? Answer::kNo : Answer::kUnknown;
}

// An interval and the limit on which a decision depends.
struct Margin {
  double distance = 0;  // from the estimate to the limit
  double half = 0;      // half width of the interval
  int repeats = 1;      // from which the interval comes
  double df = 0;        // its degrees of freedom; 0: there is no interval
};

// Returns the least number of additional repeats after which the half width would be below the distance, or
// kMostAdditionalRepeats + 1 if it is larger than kMostAdditionalRepeats. See advise.h for the assumptions.
int AdditionalRepeats(const Margin& margin, const CriticalValues& critical) {
  if (margin.df <= 0) return kForFirstInterval;
  if (margin.distance <= 0) return kMostAdditionalRepeats + 1;  // no interval is narrower
  const double t = critical.T(margin.df);
  for (int more = 1; more <= kMostAdditionalRepeats; ++more) {
    const double n = margin.repeats + more;
    const double df = margin.repeats > 1 ? margin.df * (n - 1) / (margin.repeats - 1) : margin.df + more;
    if (margin.half * critical.T(df) / t * std::sqrt(margin.repeats / n) < margin.distance) return more;
  }
  return kMostAdditionalRepeats + 1;
}

class Adviser {
 public:
  Adviser(const CellGroup& group, const Machine& machine, CellRatios& ratios, const AdviceOptions& options)
      : machine_(machine), ratios_(ratios), options_(options) {
    std::vector<Candidate> candidates = group.candidates;
    std::ranges::sort(candidates, {}, &Candidate::ranks);
    for (const Candidate& candidate : candidates) {
      // Two sizes that share blocks with a third one may share none with each other.
      const bool comparable = std::ranges::all_of(
          sizes_, [&](const Candidate& size) { return ratios.MayCompare(candidate.cell, size.cell); });
      if (comparable) sizes_.push_back(candidate);
    }
    (void)google::protobuf::util::JsonStringToMessage(group.key.dump(), advice_.mutable_key());
  }

  Advice Make() {
    AddSizes();
    Recommend();
    FindOpenSteps();
    FindBest();
    advice_.set_text(AdviceText(advice_, options_, measured_hours_));
    return std::move(advice_);
  }

 private:
  CellRatios::Ratio Ratio(size_t a, size_t b) const {
    return *ratios_.Compare(sizes_[a].cell, sizes_[b].cell, /*deviation=*/false);
  }
  void AddSizes();
  void Recommend();
  // Finds the steps and the deadlines that are open.
  void FindOpenSteps();
  // Finds the cheapest and the fastest size.
  void FindBest();
  void AddOpen(OpenDecision::Kind kind, std::vector<size_t> sizes, int more);
  // Returns the margin between the logarithm of a ratio of throughputs and `limit`.
  Margin MarginOf(const CellRatios::Ratio& ratio, double limit) const;
  // Returns the margin between the hours of a size and the deadline.
  Margin MarginOfHours(size_t i) const;
  Estimate HoursOf(size_t i) const;
  Estimate DerivedHours(size_t i) const;
  // Relative times cannot be compared with a deadline.
  bool HasDeadline() const { return options_.deadline_hours > 0 && measured_hours_; }
  Answer InTime(size_t i) const;

  const Machine& machine_;
  CellRatios& ratios_;
  const AdviceOptions& options_;
  std::vector<Candidate> sizes_;   // by ranks
  std::vector<size_t> undecided_;  // sizes for which it is undecided whether the step to them pays
  bool measured_hours_ = false;    // false: hours are relative to the smallest size
  Advice advice_;
};

void Adviser::AddSizes() {
  measured_hours_ = !machine_.epoch_seconds[sizes_[0].cell].empty();
  for (size_t i = 0; i < sizes_.size(); ++i) {
    AdvisedSize& size = *advice_.add_sizes();
    size.set_ranks(sizes_[i].ranks);
    const double p = sizes_[i].ranks;
    *size.mutable_hours() = HoursOf(i);
    *size.mutable_cost() =
        MapOf(size.hours(), [&](double hours) { return hours * p * options_.rank_hour_price; });
    if (HasDeadline() && InTime(i) != Answer::kUnknown) size.set_in_time(InTime(i) == Answer::kYes);
    if (i == 0) continue;
    const double before = sizes_[i - 1].ranks, doublings = std::log2(p / before);
    const Estimate step = Ratio(i, i - 1).estimate;
    *size.mutable_gain() = MapOf(step, [&](double s) { return std::pow(s, 1 / doublings) - 1; });
    if (step.has_low() && step.low() > 1)
      *size.mutable_hour_price() =
          MapOf(step, [&](double s) { return ((p - before) * s / (s - 1) - p) * options_.rank_hour_price; });
    const Answer pays = Above(size.gain(), options_.min_gain);
    size.set_pays(pays == Answer::kYes ||
                  (pays == Answer::kUnknown && size.gain().mean() >= options_.min_gain));
    size.set_undecided(pays == Answer::kUnknown);
  }
}

// A speedup is a ratio within blocks, in which the noise of the blocks cancels. It does not cancel in a time,
// so the interval of a time comes from its own repeats.
Estimate Adviser::HoursOf(size_t i) const {
  if (!measured_hours_) return MapOf(Ratio(i, 0).estimate, [](double s) { return 1 / s; });
  const std::vector<double>& own = machine_.epoch_seconds[sizes_[i].cell];
  if (own.empty()) return DerivedHours(i);
  return MapOf(EstimateMean(own, ratios_.bootstrap().critical(), 0, kNoLimit),
               [&](double seconds) { return seconds * options_.epochs / 3600; });
}

// Returns the hours of the smallest size / the speedup. The correlation of the two is unknown. Their intervals are therefore
// computed with half of the error probability each, so that both hold together with the confidence (Boole's inequality).
Estimate Adviser::DerivedHours(size_t i) const {
  const CriticalValues critical((1 + ratios_.bootstrap().critical().confidence()) / 2);
  const CellRatios::Ratio ratio = Ratio(i, 0);
  const Estimate first = EstimateMean(machine_.epoch_seconds[sizes_[0].cell], critical, 0, kNoLimit);
  const double factor = options_.epochs / 3600 / ratio.estimate.mean();
  Estimate derived;
  derived.set_mean(first.mean() * factor);
  derived.set_median(derived.mean());
  if (!first.has_low() || !ratio.estimate.has_low() || ratio.df <= 0) return derived;
  const double spread = std::exp(critical.T(ratio.df) * ratio.error);
  derived.set_low(first.low() * factor / spread);
  derived.set_high(first.high() * factor * spread);
  return derived;
}

Answer Adviser::InTime(size_t i) const {
  const Estimate& hours = advice_.sizes(static_cast<int>(i)).hours();
  if (!hours.has_low()) return Answer::kUnknown;
  if (hours.high() <= options_.deadline_hours) return Answer::kYes;
  return hours.low() > options_.deadline_hours ? Answer::kNo : Answer::kUnknown;
}

void Adviser::Recommend() {
  size_t chosen = 0;
  bool stopped = false;
  std::vector<size_t> possible = {0};
  for (size_t i = 1; i < sizes_.size(); ++i) {
    const AdvisedSize& size = advice_.sizes(static_cast<int>(i));
    if (!size.undecided() && !size.pays()) break;
    if (size.undecided()) {
      undecided_.push_back(i);
      possible.push_back(i);
    } else if (undecided_.empty()) {
      possible = {i};
    } else {
      possible.back() = i;  // if the step before pays, this one does too
    }
    stopped = stopped || !size.pays();
    if (!stopped) chosen = i;
  }
  if (HasDeadline()) {
    const auto late = [&](size_t i) {
      return advice_.sizes(static_cast<int>(i)).hours().mean() > options_.deadline_hours;
    };
    for (; chosen + 1 < sizes_.size() && late(chosen); ++chosen) {
      if (InTime(chosen) == Answer::kUnknown) possible.push_back(chosen);
    }
    std::erase_if(possible, [&](size_t i) { return InTime(i) == Answer::kNo; });
    if (std::ranges::find(possible, chosen) == possible.end()) possible.push_back(chosen);
    if (InTime(chosen) == Answer::kUnknown && chosen + 1 < sizes_.size()) possible.push_back(chosen + 1);
    if (late(chosen)) chosen = sizes_.size();  // no size is fast enough
  }
  if (chosen == sizes_.size()) return;
  advice_.set_recommended(sizes_[chosen].ranks);
  std::ranges::sort(possible);
  possible.erase(std::unique(possible.begin(), possible.end()), possible.end());
  for (const size_t i : possible) advice_.add_candidates(sizes_[i].ranks);
}

// The cheapest size has the largest throughput per rank, the fastest the largest throughput.
void Adviser::FindBest() {
  std::vector<double> speedups;
  for (size_t i = 0; i < sizes_.size(); ++i) speedups.push_back(Ratio(i, 0).estimate.mean());
  const auto find = [&](bool per_rank, OpenDecision::Kind kind, auto* candidates) {
    const auto worth = [&](size_t i) { return speedups[i] / (per_rank ? sizes_[i].ranks : 1); };
    size_t best = 0;
    for (size_t i = 1; i < sizes_.size(); ++i) {
      if (worth(i) > worth(best)) best = i;
    }
    std::vector<size_t> possible;
    int more = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const CellRatios::Ratio ratio = Ratio(i, best);
      const double share = per_rank ? static_cast<double>(sizes_[best].ranks) / sizes_[i].ranks : 1;
      if (i != best && ratio.estimate.has_high() && ratio.estimate.high() * share < 1) continue;
      possible.push_back(i);
      candidates->Add(sizes_[i].ranks);
      if (i != best)
        more = std::max(more,
                        AdditionalRepeats(MarginOf(ratio, -std::log(share)), ratios_.bootstrap().critical()));
    }
    if (possible.size() > 1) AddOpen(kind, std::move(possible), more);
    return sizes_[best].ranks;
  };
  advice_.set_cheapest(find(true, OpenDecision::CHEAPEST, advice_.mutable_cheapest_candidates()));
  advice_.set_fastest(find(false, OpenDecision::FASTEST, advice_.mutable_fastest_candidates()));
}

void Adviser::AddOpen(OpenDecision::Kind kind, std::vector<size_t> sizes, int more) {
  std::ranges::sort(sizes);
  OpenDecision& decision = *advice_.add_open_decisions();
  decision.set_kind(kind);
  for (const size_t i : sizes) decision.add_ranks(sizes_[i].ranks);
  if (more <= kMostAdditionalRepeats) decision.set_additional_repeats(more);
}

// A step does not matter if the size before it is certainly too slow, because then a larger one is needed anyway.
void Adviser::FindOpenSteps() {
  int needed = 0;
  const auto add = [&](OpenDecision::Kind kind, std::vector<size_t> sizes, const Margin& margin) {
    const int more = AdditionalRepeats(margin, ratios_.bootstrap().critical());
    needed = std::max(needed, margin.repeats + more);
    AddOpen(kind, std::move(sizes), more);
  };
  for (const size_t i : undecided_) {
    if (HasDeadline() && InTime(i - 1) == Answer::kNo) continue;
    const double doublings = std::log2(static_cast<double>(sizes_[i].ranks) / sizes_[i - 1].ranks);
    add(OpenDecision::GAIN, {i - 1, i}, MarginOf(Ratio(i, i - 1), doublings * std::log1p(options_.min_gain)));
  }
  for (size_t i = 0; HasDeadline() && i < sizes_.size(); ++i) {
    const bool possible =
        advice_.recommended() == 0 ||
        std::ranges::find(advice_.candidates(), sizes_[i].ranks) != advice_.candidates().end();
    if (!possible || InTime(i) != Answer::kUnknown) continue;
    std::vector<size_t> sizes = {i};
    if (machine_.epoch_seconds[sizes_[i].cell].empty()) sizes.push_back(0);
    add(OpenDecision::DEADLINE, std::move(sizes), MarginOfHours(i));
  }
  advice_.set_repeats_needed(needed);
}

Margin Adviser::MarginOf(const CellRatios::Ratio& ratio, double limit) const {
  Margin margin;
  margin.distance = std::abs(std::log(ratio.estimate.mean()) - limit);
  margin.repeats = std::max(1, ratio.common);
  margin.df = ratio.estimate.has_low() ? ratio.df : 0;
  if (margin.df > 0) margin.half = ratios_.bootstrap().critical().T(margin.df) * ratio.error;
  return margin;
}

Margin Adviser::MarginOfHours(size_t i) const {
  const Estimate& hours = advice_.sizes(static_cast<int>(i)).hours();
  const std::vector<double>&own = machine_.epoch_seconds[sizes_[i].cell],
        &first = machine_.epoch_seconds[sizes_[0].cell];
  Margin margin;
  margin.distance = std::abs(hours.mean() - options_.deadline_hours);
  margin.repeats = static_cast<int>(own.empty() ? first.size() : own.size());
  if (!hours.has_low()) return margin;
  margin.half = hours.high() - hours.mean();
  margin.df = margin.repeats - 1;
  if (!own.empty()) return margin;
  const CellRatios::Ratio ratio = Ratio(i, 0);
  margin.repeats = std::min(margin.repeats, std::max(1, ratio.common));
  margin.df = std::min(margin.df, ratio.df);
  return margin;
}

}  // namespace

std::vector<Advice> AdviseRanks(const StudyRows& study, const AdviceOptions& options) {
  const CellGroups cells = GroupCells({study}, "ranks");
  MachineRatios ratios({study}, cells);
  std::vector<Advice> advice(cells.groups.size());
  ForEachInParallel(advice.size(), advice.size() < kManyGroups ? 1 : kAdviceThreads, [&](size_t i) {
    const CellGroup& group = cells.groups[i];
    advice[i] =
        Adviser(group, cells.machines.at(group.fingerprint), ratios.of(group.fingerprint), options).Make();
  });
  return advice;
}

}  // namespace scalelab::analysis
