#include "analysis/comparison/compare.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "analysis/comparison/compare_studies.h"
#include "analysis/comparison/study_differences.h"
#include "analysis/parallel.h"
#include "analysis/ratios.h"
#include "google/protobuf/util/json_util.h"

namespace scalelab::analysis {
namespace {

constexpr size_t kManyCandidates = 32, kComparisonThreads = 4;

}  // namespace

using scalelab::v1::ComparedGroup;
using scalelab::v1::ComparedPair;

double TukeyCriticalValues::Of(size_t candidates, double df) {
  const absl::MutexLock lock(&mutex_);
  double& known = known_[{candidates, df}];
  if (known == 0)
    known = StudentizedRangeQuantile(confidence_, static_cast<int>(candidates), df) / std::sqrt(2.0);
  return known;
}

double EquivalenceP(double g, double error, double df, double d) {
  const double limit = std::log1p(d);
  if (error <= 0) return std::abs(g) <= limit ? 0 : 1;
  return std::max(StudentCdf(-(limit - g) / error, df), StudentCdf(-(g + limit) / error, df));
}

ComparedPair::Verdict VerdictOf(const ComparedPair& pair, double confidence) {
  if (pair.has_equivalence_p() && pair.equivalence_p() < 1 - confidence) return ComparedPair::EQUIVALENT;
  if (!pair.effect().has_low()) return ComparedPair::UNDECIDED;
  if (pair.effect().low() > 0) return ComparedPair::FASTER;
  return pair.effect().high() < 0 ? ComparedPair::SLOWER : ComparedPair::UNDECIDED;
}

absl::StatusOr<std::vector<ComparedPair>> ComparePairs(const std::vector<Candidate>& candidates,
                                                       double equivalent, CellRatios& ratios,
                                                       TukeyCriticalValues& critical,
                                                       const std::function<bool()>& over) {
  // The last critical value of a thread. Most pairs share one value, and `critical` locks a mutex in each call.
  struct Known {
    double df = 0, tukey = 0;
  };
  const auto compare = [&](const Candidate& a, const Candidate& b,
                           Known& known) -> std::optional<ComparedPair> {
    const auto ratio = ratios.Compare(a.cell, b.cell, /*deviation=*/false);
    if (!ratio.has_value()) return std::nullopt;
    ComparedPair pair;
    pair.set_first(a.name);
    pair.set_second(b.name);
    pair.set_n(ratio->common);
    const double g = std::log(ratio->estimate.mean());
    pair.mutable_effect()->set_mean(std::expm1(g));
    pair.mutable_effect()->set_median(ratio->estimate.median() - 1);
    if (ratio->df > 0) {
      if (known.df != ratio->df) known = {ratio->df, critical.Of(candidates.size(), ratio->df)};
      pair.mutable_effect()->set_low(std::expm1(g - known.tukey * ratio->error));
      pair.mutable_effect()->set_high(std::expm1(g + known.tukey * ratio->error));
      if (equivalent > 0) pair.set_equivalence_p(EquivalenceP(g, ratio->error, ratio->df, equivalent));
    }
    pair.set_verdict(VerdictOf(pair, critical.confidence()));
    return pair;
  };
  const size_t threads = candidates.size() < kManyCandidates ? 1 : kComparisonThreads;
  std::vector<std::vector<ComparedPair>> of_first(candidates.size());
  std::atomic<bool> cancelled = false;
  ForEachInParallel(candidates.size(), threads, [&](size_t i) {
    of_first[i].reserve(candidates.size() - i);
    Known known;
    for (size_t j = i + 1; j < candidates.size(); ++j) {
      if (cancelled || over()) {
        cancelled = true;
        return;
      }
      if (auto pair = compare(candidates[i], candidates[j], known); pair.has_value())
        of_first[i].push_back(*std::move(pair));
    }
  });
  if (cancelled) return absl::CancelledError("nobody waits for the comparison");
  std::vector<ComparedPair> pairs;
  size_t total = 0;
  for (const std::vector<ComparedPair>& some : of_first) total += some.size();
  pairs.reserve(total);
  for (std::vector<ComparedPair>& some : of_first) std::ranges::move(some, std::back_inserter(pairs));
  return pairs;
}

namespace {

// The number of pairs grows with the square of this number.
constexpr size_t kMostValues = 100;

absl::Status CheckGroups(const CellGroups& cells, const std::string& axis) {
  for (const CellGroup& group : cells.groups) {
    if (group.candidates.size() > kMostValues)
      return absl::InvalidArgumentError(
          absl::StrCat("axis \"", axis, "\" has ", group.candidates.size(),
                       " values at equal values of the other axes; at most ", kMostValues,
                       " can be compared; compare another axis, or studies with fewer values"));
  }
  return absl::OkStatus();
}

double NoiseFloor(const CellGroup& group, CellRatios& ratios) {
  std::vector<double> repeats;
  for (const Candidate& candidate : group.candidates)
    repeats.push_back(static_cast<double>(ratios.sample(candidate.cell).size()));
  return ratios.NoiseFloor(Median(std::move(repeats)));
}

// Returns a note for each parameter in which cells of several studies differ although GroupCells makes them one cell.
absl::StatusOr<std::vector<std::string>> DifferencesOf(const std::vector<StudyRows>& studies,
                                                       const std::string& axis,
                                                       const std::function<bool()>& over) {
  StudyReader reader;
  for (size_t i = 0; i < studies.size(); ++i) {
    if (over()) return absl::CancelledError("nobody waits for the comparison");
    reader.Read(studies[i], i);
  }
  std::map<std::tuple<std::string, int, std::string>, std::vector<const StudyCell*>> combined;
  for (const StudyCell& cell : reader.cells) {
    if (!cell.key.contains(axis)) continue;
    for (const std::string& fingerprint : cell.fingerprints)
      combined[{cell.key.dump(), cell.ranks, fingerprint}].push_back(&cell);
  }
  StudyDifferences differences;
  for (const auto& [key, cells] : combined) differences.Add(cells);
  return differences.Notes(studies);
}

}  // namespace

absl::StatusOr<scalelab::v1::CompareCellsResponse> CompareStudies(const std::vector<StudyRows>& studies,
                                                                  const std::string& wanted_axis,
                                                                  double equivalent,
                                                                  const std::function<bool()>& over) {
  if (wanted_axis == "study") return CompareWholeStudies(studies, equivalent, over);
  const std::string axis = wanted_axis.empty() ? "engine" : wanted_axis;
  const CellGroups cells = GroupCells(studies, axis);
  if (absl::Status s = CheckGroups(cells, axis); !s.ok()) return s;
  scalelab::v1::CompareCellsResponse response;
  response.set_axis(axis);
  MachineRatios ratios(studies, cells);
  TukeyCriticalValues critical(ratios.confidence());
  for (const CellGroup& group : cells.groups) {
    if (group.candidates.size() < 2) continue;
    CellRatios& of_machine = ratios.of(group.fingerprint);
    ComparedGroup& out = *response.add_groups();
    (void)google::protobuf::util::JsonStringToMessage(group.key.dump(), out.mutable_key());
    out.set_ranks(group.ranks);
    out.set_fingerprint(group.fingerprint);
    auto pairs = ComparePairs(group.candidates, equivalent, of_machine, critical, over);
    if (!pairs.ok()) return pairs.status();
    out.mutable_pairs()->Reserve(static_cast<int>(pairs->size()));
    for (ComparedPair& pair : *pairs) {
      if (!pair.effect().has_low())
        out.add_notes(
            absl::StrCat(pair.first(), " and ", pair.second(), ": no interval without more repeats"));
      *out.add_pairs() = std::move(pair);
    }
    out.set_noise_floor(NoiseFloor(group, of_machine));
  }
  if (cells.machines.size() > 1)
    response.add_notes(
        absl::StrCat("the runs were made on ", cells.machines.size(),
                     " kinds of hardware or software; only runs on the same one are compared"));
  if (response.groups_size() == 0)
    response.add_notes(
        absl::StrCat("nothing to compare: no two values of axis ", axis,
                     " have results at equal values of the other axes and on the same hardware"));
  if (studies.size() > 1) {
    auto differences = DifferencesOf(studies, axis, over);
    if (!differences.ok()) return differences.status();
    for (std::string& note : *differences) response.add_notes(std::move(note));
    response.add_notes(
        "each study is one day: intervals include the difference between days, not the noise within one");
  }
  return response;
}

}  // namespace scalelab::analysis
