#include "client/commands/predict/prediction_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/sections.h"
#include "client/output/cells.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Estimate;
using scalelab::v1::Prediction;
using In = Column::In;

std::string Interval(const Estimate& e) {
  return e.has_low() ? absl::StrCat("[", Short(e.low()), ", ", Short(e.high()), "]") : "";
}

Cell ResultOf(const Prediction& p) {
  if (p.state() != Prediction::SCORED) return {EnumText(Prediction::State_Name(p.state())), Tone::kDim};
  return p.covered() ? Cell{"within", Tone::kGood} : Cell{"outside", Tone::kBad};
}

std::string ModelsText(const Prediction& p) {
  std::string text;
  for (const auto& model : p.models())
    absl::StrAppend(&text, text.empty() ? "" : ", ", model.model(), " ", Short(model.throughput()));
  return text;
}

}  // namespace

Section PredictionTable(const google::protobuf::RepeatedPtrField<Prediction>& predictions) {
  Section section;
  section.columns = {{"id", In::kAll, false, false, 1},    {"study", In::kAll, false, true},
                     {"series", In::kAll, false, true, 2}, {"measured ranks", In::kTables, true, false, 3},
                     {"largest_measured", In::kCsv},       {"ranks", In::kAll, true},
                     {"predicted", In::kTables, true}};
  AddEstimateColumns("predicted", section);
  section.columns.push_back({"measured", In::kTables, true});
  section.columns.push_back({"its interval", In::kWide});
  AddEstimateColumns("measured", section);
  section.columns.push_back({"error %", In::kTables, true});
  section.columns.push_back({"error", In::kCsv});
  section.columns.push_back({"result"});
  section.columns.push_back({"models", In::kWide});
  section.columns.push_back({"source", In::kWide});
  section.columns.push_back({"reason", In::kWide});
  section.columns.push_back({"reason", In::kCsv});
  section.empty = "no predictions; `scalelab predict STUDY` makes them";
  section.rows = [&predictions](const RowSink& sink) {
    for (const Prediction& p : predictions) {
      const std::string key = KeyText(p.key()), id = LastPart(p.name());
      std::vector<Cell> row = {id.empty() ? "-" : id,
                               p.display_name(),
                               key.empty() ? "-" : key,
                               absl::StrCat("up to ", p.largest_measured()),
                               absl::StrCat(p.largest_measured()),
                               absl::StrCat(p.ranks()),
                               p.has_predicted() ? WithInterval(p.predicted(), Short) : "-"};
      AddEstimateCells(p.has_predicted() ? &p.predicted() : nullptr, row);
      row.emplace_back(p.has_measured() ? Short(p.measured().mean()) : "-");
      row.emplace_back(p.has_measured() ? Interval(p.measured()) : "");
      AddEstimateCells(p.has_measured() ? &p.measured() : nullptr, row);
      row.emplace_back(p.has_error() ? absl::StrFormat("%+.1f", 100 * p.error()) : "-");
      row.emplace_back(p.has_error() ? Exact(p.error()) : "");
      row.push_back(ResultOf(p));
      row.emplace_back(ModelsText(p));
      row.emplace_back(p.source_study());
      row.emplace_back(p.reason());
      row.emplace_back(p.reason());
      sink(row);
    }
  };
  return section;
}

Section PredictionReasons(const google::protobuf::RepeatedPtrField<Prediction>& predictions) {
  std::vector<std::pair<std::string, Cell>> facts;
  for (const Prediction& p : predictions) {
    if (p.state() != Prediction::REFUSED && p.state() != Prediction::UNRESOLVED) continue;
    std::pair<std::string, Cell> fact(EnumText(Prediction::State_Name(p.state())), Cell(p.reason()));
    const bool known = std::ranges::any_of(facts, [&](const auto& f) { return f.second.text == p.reason(); });
    if (!known) facts.push_back(std::move(fact));
  }
  const bool any = !facts.empty();
  Section section = Facts(std::move(facts));
  section.in_tables = any;
  return section;
}

Section PredictionFacts(const scalelab::v1::PredictionSummary& summary) {
  std::vector<std::pair<std::string, Cell>> facts = {
      {"predictions", absl::StrCat(summary.predictions(), ", ", summary.scored(), " with a score")}};
  if (summary.scored() > 0) {
    facts.emplace_back("within their interval",
                       absl::StrCat(summary.covered(), " of ", summary.scored(), ", ",
                                    Percent(static_cast<double>(summary.covered()) / summary.scored()), "%"));
    facts.emplace_back("absolute error",
                       absl::StrCat("median ", Percent(summary.median_error()), "%, 90th percentile ",
                                    Percent(summary.p90_error()), "%"));
  }
  Section section = Facts(std::move(facts));
  section.in_tables = summary.predictions() > 0;
  return section;
}

}  // namespace scalelab::client
