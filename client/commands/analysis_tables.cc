#include "client/commands/analysis_tables.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/commands/sections.h"
#include "client/output/cells.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Advice;
using scalelab::v1::AdvisedSize;
using scalelab::v1::AdviseRanksResponse;
using scalelab::v1::CompareCellsResponse;
using scalelab::v1::ComparedGroup;
using scalelab::v1::ComparedPair;
using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;
using scalelab::v1::GetCurveResponse;
using scalelab::v1::MeasuredPoint;
using scalelab::v1::MeasuredSeries;
using In = Column::In;

// Appends the cell of tables and those of CSV. `scale` applies to tables only.
void AddEstimate(bool has, const Estimate& e, std::vector<Cell>& row, double scale = 1) {
  row.emplace_back(has ? WithInterval(e, [&](double value) { return Short(scale * value); }) : "-");
  AddEstimateCells(has ? &e : nullptr, row);
}

std::string PaysText(const AdvisedSize& size) {
  if (!size.has_gain()) return "-";
  if (size.undecided()) return "undecided";
  return size.pays() ? "yes" : "no";
}

}  // namespace

Tone VerdictTone(ComparedPair::Verdict verdict) {
  switch (verdict) {
    case ComparedPair::FASTER:
    case ComparedPair::EQUIVALENT:
      return Tone::kGood;
    case ComparedPair::SLOWER:
      return Tone::kBad;
    default:
      return Tone::kDim;
  }
}

absl::StatusOr<double> ShareOf(absl::string_view option, absl::string_view text) {
  absl::string_view number = text;
  const double scale = absl::ConsumeSuffix(&number, "%") ? 0.01 : 1;
  double share = 0;
  if (absl::SimpleAtod(number, &share) && share * scale > 0 && share * scale <= 1) return share * scale;
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", text, " is not a share above 0; for example ", option, " 2%"));
}

std::vector<GetCurveResponse> NotedCurves(
    const google::protobuf::RepeatedPtrField<MeasuredSeries>& measured) {
  std::vector<GetCurveResponse> curves;
  for (const MeasuredSeries& series : measured) {
    if (curves.empty() || curves.back().study() != series.study()) {
      curves.emplace_back().set_study(series.study());
      curves.back().set_display_name(series.display_name());
    }
    CurveSeries& noted = *curves.back().add_series();
    *noted.mutable_key() = series.key();
    noted.set_fingerprint(series.fingerprint());
    *noted.mutable_notes() = series.notes();
    for (const MeasuredPoint& point : series.points()) {
      CurvePoint& noted_point = *noted.add_points();
      noted_point.set_ranks(point.ranks());
      *noted_point.mutable_notes() = point.notes();
    }
  }
  return curves;
}

Section ComparisonTable(const CompareCellsResponse& comparison) {
  Section section;
  section.columns = {{"where", In::kTables, false, true}, {"key", In::kCsv},
                     {"ranks", In::kAll, true},           {"first", In::kAll, false, true},
                     {"second", In::kAll, false, true},   {"n", In::kAll, true, false, 1},
                     {"effect %", In::kTables, true}};
  AddEstimateColumns("effect", section);
  section.columns.push_back({"verdict"});
  section.columns.push_back({"equivalence_p", In::kCsv});
  section.columns.push_back({"fingerprint", In::kCsv});
  section.empty = "nothing to compare";
  section.rows = [&comparison](const RowSink& sink) {
    for (const ComparedGroup& group : comparison.groups()) {
      for (const ComparedPair& pair : group.pairs()) {
        const std::string key = KeyText(group.key());
        std::vector<Cell> row = {key.empty() ? "-" : key,
                                 key,
                                 absl::StrCat(group.ranks()),
                                 pair.first(),
                                 pair.second(),
                                 absl::StrCat(pair.n()),
                                 DifferenceText(pair.effect())};
        AddEstimateCells(&pair.effect(), row);
        row.emplace_back(EnumText(ComparedPair::Verdict_Name(pair.verdict())), VerdictTone(pair.verdict()));
        row.emplace_back(pair.has_equivalence_p() ? Exact(pair.equivalence_p()) : "");
        row.emplace_back(group.fingerprint());
        sink(row);
      }
    }
  };
  return section;
}

Section ComparisonFacts(const CompareCellsResponse& comparison, const std::vector<std::string>& curve_notes) {
  std::vector<std::pair<std::string, Cell>> facts = {
      {"effect",
       "throughput of the first relative to the second, within blocks; the intervals of all pairs at one "
       "number of "
       "ranks hold together with 95%"}};
  for (const ComparedGroup& group : comparison.groups()) {
    const std::string where = absl::StrCat(KeyText(group.key()), KeyText(group.key()).empty() ? "" : ", ",
                                           group.ranks(), group.ranks() == 1 ? " rank" : " ranks");
    if (group.noise_floor() > 0)
      facts.emplace_back("noise floor",
                         absl::StrCat(where, ": differences below ", Percent(group.noise_floor()),
                                      "% could not be seen with these repeats"));
    for (const std::string& note : group.notes()) facts.emplace_back("note", absl::StrCat(where, ": ", note));
  }
  for (const std::string& note : comparison.notes()) facts.emplace_back("note", note);
  for (const std::string& note : curve_notes) facts.emplace_back("note", note);
  return Facts(std::move(facts));
}

Section AdviceTable(const AdviseRanksResponse& response) {
  Section section;
  // Show the names of series only if there are several, and the column about the deadline only if
  // there is one.
  const bool several = response.advice_size() > 1;
  const bool deadline = std::ranges::any_of(response.advice(), [](const Advice& advice) {
    return std::ranges::any_of(advice.sizes(), [](const AdvisedSize& size) { return size.has_in_time(); });
  });
  section.columns = {{"series", several ? In::kAll : In::kCsv, false, true},
                     {"ranks", In::kAll, true},
                     {"hours", In::kTables, true}};
  AddEstimateColumns("hours", section);
  section.columns.push_back({"cost", In::kTables, true, false, 2});
  AddEstimateColumns("cost", section);
  section.columns.push_back({"doubling gains %", In::kTables, true, false, 1});
  AddEstimateColumns("gain", section);
  section.columns.push_back({"hour saved costs", In::kTables, true, false, 3});
  AddEstimateColumns("hour_price", section);
  section.columns.push_back({"pays"});
  section.columns.push_back({"in time", deadline ? In::kAll : In::kCsv});
  section.columns.push_back({"advice"});
  section.empty = "no results yet";
  section.rows = [&response](const RowSink& sink) {
    for (const Advice& advice : response.advice()) {
      for (const AdvisedSize& size : advice.sizes()) {
        const std::string key = KeyText(advice.key());
        std::vector<Cell> row = {key.empty() ? response.display_name() : key, absl::StrCat(size.ranks())};
        AddEstimate(true, size.hours(), row);
        AddEstimate(true, size.cost(), row);
        AddEstimate(size.has_gain(), size.gain(), row, 100);
        AddEstimate(size.has_hour_price(), size.hour_price(), row);
        row.emplace_back(PaysText(size));
        row.emplace_back(!size.has_in_time() ? "-" : size.in_time() ? "yes" : "no");
        const bool candidate =
            std::ranges::find(advice.candidates(), size.ranks()) != advice.candidates().end();
        if (size.ranks() == advice.recommended()) {
          row.emplace_back(advice.candidates_size() > 1 ? "probably" : "use this", Tone::kGood);
        } else {
          row.emplace_back(candidate ? "possible" : "");
        }
        sink(row);
      }
    }
  };
  return section;
}

Section AdviceText(const AdviseRanksResponse& response, const std::vector<std::string>& curve_notes) {
  std::vector<std::pair<std::string, Cell>> facts = {
      {"study", absl::StrCat(response.study(), " ", response.display_name())}};
  for (const Advice& advice : response.advice()) {
    const std::string key = KeyText(advice.key());
    facts.emplace_back("advice", absl::StrCat(key, key.empty() ? "" : ": ", advice.text()));
  }
  for (const std::string& note : curve_notes) facts.emplace_back("note", note);
  return Facts(std::move(facts));
}

}  // namespace scalelab::client
