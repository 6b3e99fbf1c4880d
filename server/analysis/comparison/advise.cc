#include "server/analysis/comparison/advise.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/util/json_util.h"
#include "server/analysis/ratios.h"
#include "server/analysis/statistics.h"

namespace scalelab::server {
namespace {

using scalelab::v1::Advice;
using scalelab::v1::AdvisedSize;
using scalelab::v1::Estimate;

constexpr int kMostRepeats = 100;

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

std::string WithRanks(int ranks) { return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks"); }

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
    FindBest();
    CountRepeats();
    advice_.set_text(Text());
    return std::move(advice_);
  }

 private:
  CellRatios::Ratio Ratio(size_t a, size_t b) const {
    return *ratios_.Compare(sizes_[a].cell, sizes_[b].cell);
  }
  void AddSizes();
  void Recommend();
  void FindBest();
  void CountRepeats();
  Estimate HoursOf(size_t i) const;
  // Relative times cannot be compared with a deadline.
  bool HasDeadline() const { return options_.deadline_hours > 0 && measured_hours_; }
  Answer InTime(size_t i) const;
  std::string Text() const;

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
  const Estimate ratio = Ratio(i, 0).estimate;
  if (!measured_hours_) return MapOf(ratio, [](double s) { return 1 / s; });
  const double hours = options_.epochs / 3600;
  const std::vector<double>& own = machine_.epoch_seconds[sizes_[i].cell];
  if (!own.empty())
    return MapOf(EstimateMean(own, ratios_.bootstrap().critical(), 0, kNoLimit),
                 [&](double seconds) { return seconds * hours; });
  Estimate derived;  // without an interval
  derived.set_mean(Mean(machine_.epoch_seconds[sizes_[0].cell]) * hours / ratio.mean());
  derived.set_median(derived.mean());
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
    while (chosen + 1 < sizes_.size() && late(chosen)) ++chosen;
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
  const auto find = [&](bool per_rank, auto* candidates) {
    const auto worth = [&](size_t i) {
      return Ratio(i, 0).estimate.mean() / (per_rank ? sizes_[i].ranks : 1);
    };
    size_t best = 0;
    for (size_t i = 1; i < sizes_.size(); ++i) {
      if (worth(i) > worth(best)) best = i;
    }
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const Estimate ratio = Ratio(i, best).estimate;
      const double share = per_rank ? static_cast<double>(sizes_[best].ranks) / sizes_[i].ranks : 1;
      if (i == best || !ratio.has_high() || ratio.high() * share >= 1) candidates->Add(sizes_[i].ranks);
    }
    return sizes_[best].ranks;
  };
  advice_.set_cheapest(find(true, advice_.mutable_cheapest_candidates()));
  advice_.set_fastest(find(false, advice_.mutable_fastest_candidates()));
}

// The half width of an interval is proportional to 1 / sqrt(repeats). Returns the repeats after which the
// interval of the gain would not contain the least gain any more.
void Adviser::CountRepeats() {
  double needed = 0;
  for (const size_t i : undecided_) {
    const CellRatios::Ratio step = Ratio(i, i - 1);
    const double n = static_cast<double>(std::max(1, step.common));
    if (step.df <= 0) {
      needed = std::max(needed, n + 2);
      continue;
    }
    const double doublings = std::log2(static_cast<double>(sizes_[i].ranks) / sizes_[i - 1].ranks);
    const double distance =
        std::abs(std::log(step.estimate.mean()) - doublings * std::log1p(options_.min_gain));
    const double half = ratios_.bootstrap().critical().T(std::max(step.df, 10.0)) * step.error;
    needed =
        std::max(needed, distance > 0 ? std::max(n + 1, std::ceil(n * half * half / (distance * distance)))
                                      : static_cast<double>(kMostRepeats + 1));
  }
  advice_.set_repeats_needed(static_cast<int>(std::min<double>(needed, kMostRepeats + 1)));
}

std::string Adviser::Text() const {
  if (sizes_.size() < 2) return "Only one world size has results, so there is nothing to choose.";
  std::string text;
  if (!measured_hours_) {
    text =
        "The runs report no run/epoch_seconds, so hours and costs are relative to the smallest world size. ";
    if (options_.deadline_hours > 0) absl::StrAppend(&text, "The deadline is not considered. ");
  }
  const auto step_text = [&](const AdvisedSize& size, int before) {
    const std::string interval =
        size.gain().has_low()
            ? absl::StrFormat(" [%.0f%%, %.0f%%]", 100 * size.gain().low(), 100 * size.gain().high())
            : "";
    return absl::StrFormat("from %d to %s a doubling gains %.0f%%%s of throughput", before,
                           WithRanks(size.ranks()), 100 * size.gain().mean(), interval);
  };
  if (advice_.recommended() == 0) {
    absl::StrAppendFormat(&text, "No measured world size meets the deadline of %.3g h. ",
                          options_.deadline_hours);
  } else if (advice_.candidates_size() > 1) {
    absl::StrAppend(&text, "Undecided: ", absl::StrJoin(advice_.candidates(), " or "), " ranks; ",
                    advice_.recommended(), " is more likely. ");
  } else {
    absl::StrAppend(&text, "Use ", WithRanks(advice_.recommended()), ". ");
  }
  for (int i = 1; i < advice_.sizes_size(); ++i) {
    const AdvisedSize& size = advice_.sizes(i);
    if (size.pays() && !size.undecided()) continue;
    std::string step = step_text(size, advice_.sizes(i - 1).ranks());
    step[0] = 'F';
    absl::StrAppendFormat(
        &text, "%s; %s pays from %.0f%% on. ", step,
        size.undecided() ? "that may or may not be enough, because it" : "that is too little, because it",
        100 * options_.min_gain);
    break;
  }
  const auto best = [&](const char* what, int ranks, const auto& candidates) {
    absl::StrAppend(
        &text, what, " is ", WithRanks(ranks),
        candidates.size() > 1 ? absl::StrCat(" (possibly ", absl::StrJoin(candidates, ", "), ")") : "");
  };
  best("The cheapest world size", advice_.cheapest(), advice_.cheapest_candidates());
  best(", the fastest", advice_.fastest(), advice_.fastest_candidates());
  absl::StrAppend(&text, ". ");
  if (advice_.repeats_needed() > kMostRepeats) {
    absl::StrAppend(&text, "More than ", kMostRepeats,
                    " repeats would be needed to decide, so the choice does not matter in practice. ");
  } else if (advice_.repeats_needed() > 0) {
    std::vector<int> ranks;
    for (const size_t i : undecided_) ranks.push_back(sizes_[i - 1].ranks), ranks.push_back(sizes_[i].ranks);
    std::ranges::sort(ranks);
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    absl::StrAppend(&text, "About ", advice_.repeats_needed(), " repeats of ", absl::StrJoin(ranks, ", "),
                    " ranks would settle it. ");
  }
  text.pop_back();
  return text;
}

}  // namespace

std::vector<Advice> AdviseRanks(const StudyRows& study, const AdviceOptions& options) {
  const CellGroups cells = GroupCells({study}, "ranks");
  MachineRatios ratios({study}, cells);
  std::vector<Advice> advice;
  for (const CellGroup& group : cells.groups)
    advice.push_back(
        Adviser(group, cells.machines.at(group.fingerprint), ratios.of(group.fingerprint), options).Make());
  return advice;
}

}  // namespace scalelab::server
