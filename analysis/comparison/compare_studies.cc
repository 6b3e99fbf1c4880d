#include "analysis/comparison/compare_studies.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/comparison/compare.h"
#include "analysis/ratios.h"
#include "analysis/statistics.h"
#include "catalog/metric_ranges.h"
#include "google/protobuf/util/json_util.h"

namespace scalelab::analysis {
namespace {

using nlohmann::json;
using scalelab::v1::ComparedGroup;
using scalelab::v1::ComparedPair;

constexpr size_t kMostDifferences = 20, kMostListed = 4;

// A cell of one study with its results.
struct StudyCell {
  size_t study = 0;
  int ranks = 0;
  json values;  // of all parameters, flat: also "params.dropout"
  std::vector<double> throughput;
  std::set<std::string> fingerprints;
};

// The cells that are compared with each other.
struct StudyGroup {
  json key;
  int ranks = 0;
  std::vector<const StudyCell*> cells;  // in the order of the studies
};

// Replaces the strings as which the JSON of protobuf has 64-bit numbers. A Struct, as the key of a cell, has numbers.
void SetNumbers(const google::protobuf::Descriptor& type, json& flat) {
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_INT64) continue;
    const auto found = flat.find(type.field(i)->name());
    int64_t number = 0;
    if (found != flat.end() && found->is_string() &&
        absl::SimpleAtoi(found->get_ref<const std::string&>(), &number))
      *found = number;
  }
}

json ToFlat(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return json::object();
  json flat = json::parse(text, nullptr, false);
  SetNumbers(*message.GetDescriptor(), flat);
  const auto own = flat.find("params");
  if (own == flat.end() || !own->is_object()) return flat;
  const json params = std::move(*own);
  flat.erase(own);
  for (const auto& [name, value] : params.items()) flat[absl::StrCat("params.", name)] = value;
  return flat;
}

std::string ToText(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

class StudyReader {
 public:
  void Read(const StudyRows& study, size_t number);

  std::vector<StudyCell> cells;
  std::set<std::string> axes;  // axes of any study, without ranks
};

void StudyReader::Read(const StudyRows& study, size_t number) {
  static const MetricRange& range = RangeOf("run/throughput");
  std::unordered_map<int64_t, std::vector<const db::CurveRow*>> rows;
  for (const db::CurveRow& row : study.rows) {
    if (row.state == db::RunState::kSucceeded && row.repeat >= 0 && row.throughput.has_value() &&
        range.Contains(*row.throughput))
      rows[row.cell_id].push_back(&row);
  }
  for (size_t i = 0; i < study.cells.size(); ++i) {
    const auto found = rows.find(study.cells[i].id);
    const scalelab::v1::RunSpec spec = study.parameters.SpecWithoutCommand(i);
    if (found == rows.end() || spec.communication_baseline()) continue;
    StudyCell cell{number, study.cells[i].ranks, ToFlat(spec), {}, {}};
    const json key = ToFlat(study.parameters.Key(i));
    for (const auto& [axis, value] : key.items()) {
      cell.values[axis] = value;
      if (axis != "ranks") axes.insert(axis);
    }
    cell.values.erase("seed");
    for (const db::CurveRow* row : found->second) {
      cell.throughput.push_back(*row->throughput);
      cell.fingerprints.insert(row->fingerprint);
    }
    cells.push_back(std::move(cell));
  }
}

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
  explicit CriticalDifferences(double confidence) : of_means(confidence) {}
  double confidence() const { return of_means.confidence(); }
  double Of(size_t candidates, double df) {
    if (candidates == 2) return of_means.T(df);
    double& known = known_[{candidates, std::min(static_cast<int>(df), kMostDf)}];
    if (known == 0)
      known = TukeyCritical(candidates, std::min(std::floor(df), static_cast<double>(kMostDf)), confidence());
    return known;
  }

  const CriticalValues of_means;

 private:
  static constexpr int kMostDf = 200;
  std::map<std::pair<size_t, int>, double> known_;
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

// Collects the values of the parameters in which compared cells differ.
class StudyDifferences {
 public:
  void Add(const StudyCell& a, const StudyCell& b) {
    for (const auto& [name, value] : a.values.items())
      Compare(name, value, b.values.value(name, json()), a, b);
    for (const auto& [name, value] : b.values.items()) {
      if (!a.values.contains(name)) Compare(name, json(), value, a, b);
    }
  }
  std::vector<std::string> Notes(const std::vector<StudyRows>& studies) const {
    std::vector<std::string> notes;
    for (const auto& [name, of_study] : values_) {
      std::vector<std::string> parts;
      for (const auto& [study, values] : of_study) {
        std::vector<std::string> listed(values.begin(), values.end());
        if (listed.size() > kMostListed) {
          listed.resize(kMostListed);
          listed.emplace_back("...");
        }
        parts.push_back(absl::StrCat(absl::StrJoin(listed, ", "), " (", studies[study].name, ")"));
      }
      notes.push_back(absl::StrCat("the studies differ in ", name, ": ", absl::StrJoin(parts, ", ")));
      if (notes.size() == kMostDifferences) break;
    }
    return notes;
  }

 private:
  void Compare(const std::string& name, const json& a, const json& b, const StudyCell& of_a,
               const StudyCell& of_b) {
    if (a == b) return;
    values_[name][of_a.study].insert(ToText(a));
    values_[name][of_b.study].insert(ToText(b));
  }
  std::map<std::string, std::map<size_t, std::set<std::string>>> values_;  // by parameter and study
};

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
    for (size_t i = 0; i < group.cells.size(); ++i) {
      for (size_t j = i + 1; j < group.cells.size(); ++j) {
        if (over()) return absl::CancelledError("nobody waits for the comparison");
        const StudyCell &a = *group.cells[i], &b = *group.cells[j];
        ComparedPair& pair = *out.add_pairs();
        pair = ComparePair(a, b, group.cells.size(), equivalent, studies, critical);
        differences.Add(a, b);
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
