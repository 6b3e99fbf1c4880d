#include "analysis/comparison/compare_studies.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/comparison/compare.h"
#include "analysis/comparison/study_differences.h"
#include "analysis/ratios.h"
#include "analysis/statistics.h"
#include "google/protobuf/util/json_util.h"

namespace scalelab::analysis {
namespace {

using nlohmann::json;
using scalelab::v1::ComparedGroup;
using scalelab::v1::ComparedPair;

// The cells that are compared with each other.
struct StudyGroup {
  json key;
  int ranks = 0;
  std::vector<const StudyCell*> cells;  // in the order of the studies
};

// Returns the axes with at least two values in a study, in which its cells differ.
std::vector<std::string> SeparatingAxes(const StudyReader& reader) {
  std::vector<std::string> separating;
  for (const std::string& axis : reader.axes) {
    std::map<size_t, json> first;  // by study
    for (const StudyCell& cell : reader.cells) {
      const json value = cell.values.value(axis, json());
      const auto [it, added] = first.try_emplace(cell.study, value);
      if (added || it->second == value) continue;
      separating.push_back(axis);
      break;
    }
  }
  return separating;
}

std::vector<StudyGroup> GroupStudies(const StudyReader& reader) {
  const std::vector<std::string> axes = SeparatingAxes(reader);
  std::vector<StudyGroup> groups;
  std::map<std::pair<std::string, int>, size_t> index;
  for (const StudyCell& cell : reader.cells) {
    json key = json::object();
    for (const std::string& axis : axes) key[axis] = cell.values.value(axis, json());
    const auto [it, added] = index.try_emplace({key.dump(), cell.ranks}, groups.size());
    if (added) groups.push_back({std::move(key), cell.ranks, {}});
    groups[it->second].cells.push_back(&cell);
  }
  return groups;
}

// The logarithms of a sample.
struct Moments {
  double mean = 0, median = 0, error2 = 0;  // error2: variance of the mean
  double df = 0;
};

Moments MomentsOf(const std::vector<double>& values) {
  std::vector<double> logs;
  for (const double value : values) logs.push_back(std::log(value));
  const auto n = static_cast<double>(logs.size());
  const double deviation = StandardDeviation(logs);
  return {Mean(logs), Median(logs), deviation * deviation / n, n - 1};
}

// Returns Welch's degrees of freedom; nothing if the noise of one of the two is not known.
std::optional<double> WelchDf(const Moments& a, const Moments& b) {
  if (a.df < 1 || b.df < 1 || a.error2 + b.error2 <= 0) return std::nullopt;
  const double sum = a.error2 + b.error2;
  return sum * sum / (a.error2 * a.error2 / a.df + b.error2 * b.error2 / b.df);
}

// Critical values of the differences of several studies. The degrees of freedom are rounded down, because each value takes
// tens of milliseconds.
class CriticalDifferences {
 public:
  explicit CriticalDifferences(double confidence) : of_means(confidence), of_pairs_(confidence) {}
  double confidence() const { return of_means.confidence(); }
  double Of(size_t candidates, double df) {
    if (candidates == 2) return of_means.T(df);
    return of_pairs_.Of(candidates, std::min(std::floor(df), kMostDf));
  }

  const CriticalValues of_means;

 private:
  static constexpr double kMostDf = 200;
  TukeyCriticalValues of_pairs_;
};

ComparedPair ComparePair(const StudyCell& a, const StudyCell& b, size_t candidates, double equivalent,
                         const std::vector<StudyRows>& studies, CriticalDifferences& differences) {
  ComparedPair pair;
  pair.set_first(studies[a.study].name);
  pair.set_second(studies[b.study].name);
  pair.set_first_repeats(static_cast<int>(a.throughput.size()));
  pair.set_second_repeats(static_cast<int>(b.throughput.size()));
  *pair.mutable_first_throughput() = EstimateMean(a.throughput, differences.of_means, 0, kNoLimit);
  *pair.mutable_second_throughput() = EstimateMean(b.throughput, differences.of_means, 0, kNoLimit);
  const Moments of_a = MomentsOf(a.throughput), of_b = MomentsOf(b.throughput);
  const double g = of_a.mean - of_b.mean;
  pair.mutable_effect()->set_mean(std::expm1(g));
  pair.mutable_effect()->set_median(std::expm1(of_a.median - of_b.median));
  if (const auto df = WelchDf(of_a, of_b); df.has_value()) {
    const double error = std::sqrt(of_a.error2 + of_b.error2);
    const double factor = differences.Of(candidates, *df);
    pair.mutable_effect()->set_low(std::expm1(g - factor * error));
    pair.mutable_effect()->set_high(std::expm1(g + factor * error));
    if (equivalent > 0) pair.set_equivalence_p(EquivalenceP(g, error, *df, equivalent));
  }
  pair.set_verdict(VerdictOf(pair, differences.confidence()));
  return pair;
}

// Sets the fingerprint if all cells have the same, else adds a note.
void AddMachines(const StudyGroup& group, const std::vector<StudyRows>& studies, ComparedGroup& out) {
  std::set<std::string> all;
  std::vector<std::string> parts;
  for (const StudyCell* cell : group.cells) {
    all.insert(cell->fingerprints.begin(), cell->fingerprints.end());
    std::vector<std::string> heads;
    for (const std::string& print : cell->fingerprints) heads.push_back(print.substr(0, 7));
    parts.push_back(absl::StrCat(absl::StrJoin(heads, " and "), " (", studies[cell->study].name, ")"));
  }
  if (all.size() == 1) return out.set_fingerprint(*all.begin());
  out.add_notes(
      absl::StrCat("made on different hardware or software, which may be the reason of the difference: ",
                   absl::StrJoin(parts, ", ")));
}

}  // namespace

absl::StatusOr<scalelab::v1::CompareCellsResponse> CompareWholeStudies(const std::vector<StudyRows>& studies,
                                                                       double equivalent,
                                                                       const std::function<bool()>& over) {
  StudyReader reader;
  for (size_t i = 0; i < studies.size(); ++i) reader.Read(studies[i], i);
  scalelab::v1::CompareCellsResponse response;
  response.set_axis("study");
  StudyDifferences differences;
  CriticalDifferences critical(ConfidenceOf(studies));
  for (const StudyGroup& group : GroupStudies(reader)) {
    if (group.cells.size() < 2) continue;
    ComparedGroup& out = *response.add_groups();
    (void)google::protobuf::util::JsonStringToMessage(group.key.dump(), out.mutable_key());
    out.set_ranks(group.ranks);
    AddMachines(group, studies, out);
    differences.Add(group.cells);
    for (size_t i = 0; i < group.cells.size(); ++i) {
      for (size_t j = i + 1; j < group.cells.size(); ++j) {
        if (over()) return absl::CancelledError("nobody waits for the comparison");
        const StudyCell &a = *group.cells[i], &b = *group.cells[j];
        ComparedPair& pair = *out.add_pairs();
        pair = ComparePair(a, b, group.cells.size(), equivalent, studies, critical);
        if (!pair.effect().has_low())
          out.add_notes(absl::StrCat(pair.first(), " and ", pair.second(),
                                     ": no interval without at least two different repeats of both"));
      }
    }
  }
  for (std::string& note : differences.Notes(studies)) response.add_notes(std::move(note));
  if (response.groups_size() == 0)
    response.add_notes(
        "nothing to compare: no cell of one study has results at the same ranks and values of the axes as a "
        "cell "
        "of another");
  response.add_notes(
      "the intervals contain the noise within the studies, not the difference between days on which they "
      "ran");
  return response;
}

}  // namespace scalelab::analysis
