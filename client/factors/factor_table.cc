#include "client/factors/factor_table.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/cells.h"
#include "client/output/text.h"
#include "client/plots/curve_view.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;
using scalelab::v1::GetCurveResponse;
using scalelab::v1::GradientNoise;
using scalelab::v1::NodeComparison;
using scalelab::v1::ScalingFactors;
using scalelab::v1::SlowestPart;
using In = Column::In;

std::string Mean(const Estimate& e) { return Percent(e.mean()); }

std::string Percents(const Estimate& e) { return WithInterval(e, Percent); }

std::string Numbers(const Estimate& e) { return WithInterval(e, Short); }

std::string Milliseconds(const Estimate& e) { return Short(1000 * e.mean()); }

// A column of the table. `get` returns the estimate of a point, or null if the point has none.
struct Figure {
  const char* title;
  const char* csv;
  In in;
  const Estimate* (*get)(const CurvePoint&);
  std::string (*text)(const Estimate&);
  int drop = 0;  // as Column::drop
};

// Columns with the largest number are left out first. Axes, ranks, communication and the product always remain.
constexpr int kDropBalance = 1, kDropComputation = 2, kDropData = 3, kDropRepeats = 4, kDropStep = 5,
              kDropRank = 6, kDropBatch = 7, kDropHidden = 8, kDropNode = 9;

template <auto kHas, auto kGet>
const Estimate* OfFactors(const CurvePoint& point) {
  return (point.factors().*kHas)() ? &(point.factors().*kGet)() : nullptr;
}

template <auto kHas, auto kGet>
const Estimate* OfNoise(const CurvePoint& point) {
  return (point.gradient_noise().*kHas)() ? &(point.gradient_noise().*kGet)() : nullptr;
}

std::vector<Figure> Figures() {
  using F = ScalingFactors;
  using G = GradientNoise;
  return {{"load balance %", "load_balance", In::kTables, OfFactors<&F::has_load_balance, &F::load_balance>,
           Mean, kDropBalance},
          {"data %", "data", In::kTables, OfFactors<&F::has_data, &F::data>, Mean, kDropData},
          {"communication %", "communication", In::kTables,
           OfFactors<&F::has_communication, &F::communication>, Mean},
          {"computation %", "computation", In::kTables, OfFactors<&F::has_computation, &F::computation>, Mean,
           kDropComputation},
          {"product %", "product", In::kTables, OfFactors<&F::has_product, &F::product>, Percents},
          {"comm ms", "communication_seconds", In::kWide,
           OfFactors<&F::has_communication_seconds, &F::communication_seconds>, Milliseconds},
          {"hidden %", "hidden", In::kTables, OfFactors<&F::has_hidden, &F::hidden>, Mean, kDropHidden},
          {"critical batch", "critical_batch", In::kTables,
           OfNoise<&G::has_critical_batch, &G::critical_batch>, Numbers, kDropBatch},
          {"per sample %", "statistical_efficiency", In::kWide,
           OfNoise<&G::has_statistical_efficiency, &G::statistical_efficiency>, Mean},
          {"goodput", "goodput", In::kTables, OfNoise<&G::has_goodput, &G::goodput>, Numbers, kDropBatch}};
}

// Columns that no point has a value for are shown in wide tables only.
In ShownIn(const GetCurveResponse& curve, const std::function<bool(const CurvePoint&)>& has) {
  for (const CurveSeries& series : curve.series()) {
    if (std::ranges::any_of(series.points(), has)) return In::kTables;
  }
  return In::kWide;
}

// Returns for example "3 on n7: +8.1 [+5.0, +11.3]".
Cell SlowestCell(bool has, const SlowestPart& part) {
  if (!has) return "-";
  const std::string who = !part.has_rank()      ? part.node()
                          : part.node().empty() ? absl::StrCat(part.rank())
                                                : absl::StrCat(part.rank(), " on ", part.node());
  return {absl::StrCat(who, ": ", DifferenceText(part.excess())),
          part.significant() ? Tone::kBad : Tone::kDim};
}

void AddSlowestCsv(bool has, const SlowestPart& part, std::vector<Cell>& row) {
  row.emplace_back(has && part.has_rank() ? absl::StrCat(part.rank()) : "");
  row.emplace_back(has ? part.node() : "");
  AddEstimateCells(has ? &part.excess() : nullptr, row);
}

void AddRow(const CurveSeries& series, const CurvePoint& point, const std::vector<std::string>& axes,
            const std::vector<Figure>& figures, const RowSink& sink) {
  const ScalingFactors& factors = point.factors();
  std::vector<Cell> row;
  for (const std::string& axis : axes) row.emplace_back(AxisText(series.key(), axis));
  row.emplace_back(series.fingerprint().substr(0, 7));
  row.emplace_back(absl::StrCat(point.ranks()));
  row.emplace_back(UsedRepeats(factors.n(), point.asked()));
  row.emplace_back(absl::StrCat(factors.n()));
  row.emplace_back(absl::StrCat(point.asked()));
  row.emplace_back(factors.n() > 0 ? Short(1000 * factors.step_seconds()) : "-");
  row.emplace_back(factors.n() > 0 ? Exact(factors.step_seconds()) : "");
  for (const Figure& figure : figures) {
    const Estimate* e = figure.get(point);
    row.emplace_back(e == nullptr ? "-" : figure.text(*e));
    AddEstimateCells(e, row);
  }
  for (const double share : {factors.ideal_share(), factors.slower_share(), factors.imbalance_share(),
                             factors.data_share(), factors.communication_share()})
    row.emplace_back(factors.n() > 0 ? Exact(share) : "");
  row.push_back(SlowestCell(factors.has_slowest_rank(), factors.slowest_rank()));
  row.push_back(SlowestCell(factors.has_slowest_node(), factors.slowest_node()));
  AddSlowestCsv(factors.has_slowest_rank(), factors.slowest_rank(), row);
  AddSlowestCsv(factors.has_slowest_node(), factors.slowest_node(), row);
  sink(row);
}

// Returns for example "n7 is significantly slower than the mean of 4 nodes: a sample takes +8.1 [+5.0, +11.3] %
// more time (24 runs that used one node each)".
std::string NodesText(const NodeComparison& comparison) {
  if (!comparison.missing().empty())
    return absl::StrCat("the slowest node is not known: ", comparison.missing());
  const SlowestPart& slowest = comparison.slowest();
  const std::string runs = absl::StrCat(" (", comparison.runs(), " runs that used one node each)");
  if (!slowest.significant())
    return absl::StrCat("none of ", slowest.compared(), " nodes is significantly slower than their mean",
                        runs);
  return absl::StrCat(slowest.node(), " is significantly slower than the mean of ", slowest.compared(),
                      " nodes: a sample takes ", DifferenceText(slowest.excess()), " % more time", runs);
}

std::string WhereOf(const std::string& label, const CurvePoint& point) {
  return absl::StrCat(label, ", ", point.ranks(), point.ranks() == 1 ? " rank" : " ranks");
}

}  // namespace

Section FactorTable(const GetCurveResponse& curve, bool repeats) {
  std::vector<const google::protobuf::Struct*> keys;
  for (const CurveSeries& series : curve.series()) keys.push_back(&series.key());
  const std::vector<std::string> axes = AxesOf(keys);
  Section section;
  for (const std::string& axis : axes) section.columns.push_back({axis, In::kAll, false, true});
  section.columns.push_back({"made on", In::kWide});
  section.columns.push_back({"ranks", In::kAll, true});
  section.columns.push_back({"n", repeats ? In::kTables : In::kWide, true, false, kDropRepeats});
  section.columns.push_back({"n", In::kCsv});
  section.columns.push_back({"asked", In::kCsv});
  section.columns.push_back({"step ms", In::kTables, true, false, kDropStep});
  section.columns.push_back({"step_seconds", In::kCsv});
  const std::vector<Figure> figures = Figures();
  for (const Figure& figure : figures) {
    const In shown = ShownIn(curve, [&](const CurvePoint& point) { return figure.get(point) != nullptr; });
    section.columns.push_back(
        {figure.title, figure.in == In::kTables ? shown : figure.in, true, false, figure.drop});
    AddEstimateColumns(figure.csv, section);
  }
  for (const char* share :
       {"ideal_share", "slower_share", "imbalance_share", "data_share", "communication_share"})
    section.columns.push_back({share, In::kCsv});
  section.columns.push_back(
      {"slowest rank %", ShownIn(curve, [](const CurvePoint& p) { return p.factors().has_slowest_rank(); }),
       false, false, kDropRank});
  section.columns.push_back(
      {"slowest node %", ShownIn(curve, [](const CurvePoint& p) { return p.factors().has_slowest_node(); }),
       false, false, kDropNode});
  for (const char* what : {"slowest_rank", "slowest_node"}) {
    for (const char* part : {"_rank", "_node", "_excess_mean", "_excess_low", "_excess_high"})
      section.columns.push_back({absl::StrCat(what, part), In::kCsv});
  }
  section.empty = "no results yet";
  section.rows = [&curve, axes, figures](const RowSink& sink) {
    for (const CurveSeries& series : curve.series()) {
      for (const CurvePoint& point : series.points()) {
        if (point.has_factors()) AddRow(series, point, axes, figures, sink);
      }
    }
  };
  return section;
}

std::vector<std::pair<std::string, Cell>> FactorFacts(const GetCurveResponse& curve) {
  std::vector<std::pair<std::string, Cell>> facts = {
      {"study", absl::StrCat(curve.study(), " ", curve.display_name())},
      {"factors",
       "100% means that nothing is lost; their product is computation of the base case / step, per rank"},
      {"slowest", "computation above the mean of all; the interval holds for all ranks or nodes at once"}};
  for (const NodeComparison& comparison : curve.node_comparisons())
    facts.emplace_back(
        "nodes", absl::StrCat(NodesText(comparison),
                              curve.node_comparisons_size() == 1
                                  ? ""
                                  : absl::StrCat(" (made on ", comparison.fingerprint().substr(0, 7), ")")));
  const std::vector<std::string> labels = SeriesLabels(curve);
  std::map<std::string, std::vector<std::string>> notes;  // places by text
  for (int i = 0; i < curve.series_size(); ++i) {
    const std::string& label = labels[static_cast<size_t>(i)];
    for (const CurvePoint& point : curve.series(i).points()) {
      const std::string where = WhereOf(label, point);
      if (!point.factors().missing().empty())
        notes[absl::StrCat("no factors: ", point.factors().missing())].push_back(where);
      if (!point.time_to_target().note().empty())
        notes[absl::StrCat("time to target: ", point.time_to_target().note())].push_back(where);
      if (!point.gradient_noise().missing().empty())
        notes[absl::StrCat("no critical batch: ", point.gradient_noise().missing())].push_back(where);
      const Estimate& critical = point.gradient_noise().critical_batch();
      if (critical.has_high() && point.global_batch() > critical.high())
        notes[absl::StrCat("the global batch of ", point.global_batch(),
                           " is above the critical batch: a sample is worth less than half")]
            .push_back(where);
    }
  }
  for (const auto& [text, places] : notes)
    facts.emplace_back("note", absl::StrCat(absl::StrJoin(places, "; "), ": ", text));
  for (std::string& note : CurveNotes(curve)) facts.emplace_back("note", std::move(note));
  return facts;
}

std::string ReachedText(const CurvePoint& point) {
  if (!point.has_time_to_target()) return "-";
  return absl::StrCat(point.time_to_target().reached(), "/", point.time_to_target().n());
}

}  // namespace scalelab::client
