#include "analysis/comparison/advice_text.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::Advice;
using scalelab::v1::AdvisedSize;
using scalelab::v1::Estimate;
using scalelab::v1::OpenDecision;

std::string WithRanks(int ranks) { return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks"); }

// Returns "4 ranks" or "1, 2 and 4 ranks".
std::string WithRanks(const google::protobuf::RepeatedField<int32_t>& ranks) {
  if (ranks.size() == 1) return WithRanks(ranks[0]);
  const std::vector<int> first(ranks.begin(), ranks.end() - 1);
  return absl::StrCat(absl::StrJoin(first, ", "), " and ", WithRanks(ranks[ranks.size() - 1]));
}

// Returns three significant digits, and all digits before the decimal point.
std::string Number(double value) {
  return std::abs(value) < 999.5 ? absl::StrFormat("%.3g", value) : absl::StrFormat("%.0f", value);
}

std::string WithInterval(const Estimate& estimate) {
  if (!estimate.has_low() || estimate.low() == estimate.high()) return Number(estimate.mean());
  return absl::StrCat(Number(estimate.mean()), " [", Number(estimate.low()), ", ", Number(estimate.high()),
                      "]");
}

std::string Recommendation(const Advice& advice, const AdviceOptions& options) {
  if (advice.recommended() == 0) {
    bool open = false;
    for (const OpenDecision& decision : advice.open_decisions())
      open = open || decision.kind() == OpenDecision::DEADLINE;
    return absl::StrFormat("%s measured world size meets the deadline of %.3g h. ",
                           open ? "Probably no" : "No", options.deadline_hours);
  }
  if (advice.candidates_size() > 1)
    return absl::StrCat("Undecided: ", absl::StrJoin(advice.candidates(), " or "), " ranks; ",
                        advice.recommended(), " is more likely. ");
  return absl::StrCat("Use ", WithRanks(advice.recommended()), ". ");
}

// Describes the first step that does not pay or is undecided.
std::string FirstPoorStep(const Advice& advice, const AdviceOptions& options) {
  for (int i = 1; i < advice.sizes_size(); ++i) {
    const AdvisedSize& size = advice.sizes(i);
    if (size.pays() && !size.undecided()) continue;
    const Estimate& gain = size.gain();
    const std::string interval =
        gain.has_low() ? absl::StrFormat(" [%.0f%%, %.0f%%]", 100 * gain.low(), 100 * gain.high()) : "";
    return absl::StrFormat(
        "From %d to %s a doubling gains %.0f%%%s of throughput; %s pays from %.0f%% on. ",
        advice.sizes(i - 1).ranks(), WithRanks(size.ranks()), 100 * gain.mean(), interval,
        size.undecided() ? "that may or may not be enough, because it" : "that is too little, because it",
        100 * options.min_gain);
  }
  return "";
}

const AdvisedSize& SizeOf(const Advice& advice, int ranks) {
  for (const AdvisedSize& size : advice.sizes()) {
    if (size.ranks() == ranks) return size;
  }
  return AdvisedSize::default_instance();
}

std::string Best(const Advice& advice, bool measured_hours) {
  const auto possibly = [](const auto& candidates) {
    return candidates.size() > 1 ? absl::StrCat(" (possibly ", absl::StrJoin(candidates, ", "), ")") : "";
  };
  return absl::StrCat("The cheapest world size is ", WithRanks(advice.cheapest()),
                      possibly(advice.cheapest_candidates()), " with a ", measured_hours ? "" : "relative ",
                      "cost of ", WithInterval(SizeOf(advice, advice.cheapest()).cost()), ", the fastest is ",
                      WithRanks(advice.fastest()), possibly(advice.fastest_candidates()), " with a ",
                      measured_hours ? "" : "relative ", "time of ",
                      WithInterval(SizeOf(advice, advice.fastest()).hours()), measured_hours ? " h. " : ". ");
}

std::string Question(const OpenDecision& decision, const AdviceOptions& options) {
  const auto& ranks = decision.ranks();
  switch (decision.kind()) {
    case OpenDecision::GAIN:
      return absl::StrCat("whether the step from ", ranks[0], " to ", WithRanks(ranks[1]), " pays");
    case OpenDecision::DEADLINE:
      return absl::StrFormat("whether the training with %s meets the deadline of %.3g h",
                             WithRanks(ranks[ranks.size() - 1]), options.deadline_hours);
    case OpenDecision::CHEAPEST:
      return "which of them is the cheapest";
    default:
      return "which of them is the fastest";
  }
}

// Returns a sentence on the runs that would settle the decision.
std::string Settlement(const OpenDecision& decision, const AdviceOptions& options) {
  const std::string ranks = WithRanks(decision.ranks()), question = Question(decision, options);
  if (!decision.has_additional_repeats())
    return absl::StrCat("More than ", kMostAdditionalRepeats, " additional repeats of ", ranks,
                        " would be needed to settle ", question,
                        ", so the choice does not matter in practice. ");
  const int more = decision.additional_repeats();
  return absl::StrCat("About ", more, more == 1 ? " additional repeat of " : " additional repeats of ", ranks,
                      " would settle ", question, ". ");
}

}  // namespace

std::string AdviceText(const Advice& advice, const AdviceOptions& options, bool measured_hours) {
  if (advice.sizes_size() < 2) return "Only one world size has results, so there is nothing to choose.";
  std::string text;
  if (!measured_hours) {
    text =
        "The runs report no run/epoch_seconds, so hours and costs are relative to the smallest world size. ";
    if (options.deadline_hours > 0) absl::StrAppend(&text, "The deadline is not considered. ");
  }
  absl::StrAppend(&text, Recommendation(advice, options), FirstPoorStep(advice, options),
                  Best(advice, measured_hours));
  for (const OpenDecision& decision : advice.open_decisions())
    absl::StrAppend(&text, Settlement(decision, options));
  text.pop_back();
  return text;
}

}  // namespace scalelab::analysis
