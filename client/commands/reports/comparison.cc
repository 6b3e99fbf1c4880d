#include "client/commands/reports/comparison.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/analysis_tables.h"
#include "client/commands/sections.h"
#include "client/figures/curve_figure.h"
#include "client/output/cells.h"
#include "client/output/file.h"
#include "client/output/text.h"
#include "client/plots/svg_plot.h"
#include "client/plots/terminal_plot.h"
#include "client/selection/curve_selection.h"
#include "client/session/selectors.h"
#include "scalelab/v1/analysis.grpc.pb.h"

namespace scalelab::client {
namespace {

using scalelab::v1::AnalysisService;
using scalelab::v1::CompareCellsRequest;
using scalelab::v1::CompareCellsResponse;
using scalelab::v1::ComparedGroup;
using scalelab::v1::ComparedPair;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;
using scalelab::v1::GetCurveRequest;
using scalelab::v1::GetCurveResponse;
using scalelab::v1::ResultService;

std::string PlaceText(const ComparedGroup& group) {
  const std::string key = ShortKeyText(group.key());
  return absl::StrCat(key, key.empty() ? "" : ", ", group.ranks(), group.ranks() == 1 ? " rank" : " ranks");
}

Section DifferenceFacts(const CompareCellsResponse& comparison, const std::vector<std::string>& curve_notes) {
  std::vector<std::pair<std::string, Cell>> facts = {
      {"difference",
       "throughput of the first relative to the second, with a 95% interval (Welch; Games and Howell)"}};
  if (comparison.studies_size() == 2 && comparison.groups_size() > 0 &&
      comparison.groups(0).pairs_size() > 0) {
    const ComparedPair& pair = comparison.groups(0).pairs(0);
    facts.emplace_back("first", absl::StrCat(pair.first(), ", ", comparison.studies(0)));
    facts.emplace_back("second", absl::StrCat(pair.second(), ", ", comparison.studies(1)));
  }
  std::map<std::string, std::vector<std::string>> places;  // by note
  for (const ComparedGroup& group : comparison.groups()) {
    for (const std::string& note : group.notes()) places[note].push_back(PlaceText(group));
  }
  for (const auto& [note, where] : places) {
    const bool everywhere = where.size() == static_cast<size_t>(comparison.groups_size());
    facts.emplace_back("note", everywhere ? note : absl::StrCat(absl::StrJoin(where, "; "), ": ", note));
  }
  for (const std::string& note : comparison.notes()) facts.emplace_back("note", note);
  for (const std::string& note : curve_notes) facts.emplace_back("note", note);
  return Facts(std::move(facts));
}

absl::StatusOr<std::vector<GetCurveResponse>> ReadCurves(const CompareCellsResponse& comparison, bool goodput,
                                                         Connection& server) {
  std::vector<GetCurveResponse> curves;
  for (const std::string& study : comparison.studies()) {
    GetCurveRequest request;
    request.set_study(study);
    request.set_factors(goodput);
    auto curve = server.Call(server.results(), &ResultService::Stub::GetCurve, request);
    if (!curve.ok()) return curve.status();
    if (goodput) KeepGoodput(*curve);
    curves.push_back(*std::move(curve));
  }
  return curves;
}

}  // namespace

absl::StatusOr<CompareCellsResponse> ReadComparison(const std::string& axis,
                                                    const std::vector<std::string>& studies,
                                                    const std::string& equivalent, Session& session) {
  CompareCellsRequest request;
  request.set_axis(axis);
  for (const std::string& study : studies) {
    const auto name = StudyName(study);
    if (!name.ok()) return name.status();
    request.add_studies(*name);
  }
  if (!equivalent.empty()) {
    const auto share = ShareOf("--equivalent", equivalent);
    if (!share.ok()) return share.status();
    request.set_equivalent(*share);
  }
  auto server = session.Server();
  if (!server.ok()) return server.status();
  return (*server)->Call((*server)->analysis(), &AnalysisService::Stub::CompareCells, request);
}

std::vector<std::string> MeasurementNotes(const CompareCellsResponse& comparison) {
  const std::vector<GetCurveResponse> curves = NotedCurves(comparison.measured());
  return curves.size() == 1 ? CurveNotes(curves.front()) : CurveNotes(JoinCurves(curves));
}

GetCurveResponse JoinCurves(const std::vector<GetCurveResponse>& curves) {
  std::map<std::string, int> count;
  for (const GetCurveResponse& curve : curves) ++count[curve.display_name()];
  GetCurveResponse joined;
  std::vector<std::string> names;
  for (const GetCurveResponse& curve : curves) {
    std::string name = curve.display_name();
    if (count[name] > 1) absl::StrAppend(&name, " (", curve.study(), ")");
    for (const CurveSeries& series : curve.series()) {
      CurveSeries& added = *joined.add_series();
      added = series;
      (*added.mutable_key()->mutable_fields())["study"].set_string_value(name);
    }
    names.push_back(std::move(name));
  }
  joined.set_display_name(absl::StrJoin(names, " and "));
  if (!curves.empty()) joined.set_scaling(curves.front().scaling());
  for (const GetCurveResponse& curve : curves) {
    if (curve.scaling() != joined.scaling()) joined.clear_scaling();
  }
  return joined;
}

Section StudyDifferences(const CompareCellsResponse& comparison) {
  using In = Column::In;
  Section section;
  const bool two = comparison.studies_size() == 2;  // then the facts below the table name the studies
  bool keys = false;
  for (const ComparedGroup& group : comparison.groups()) keys = keys || group.key().fields_size() > 0;
  section.columns = {{"where", keys ? In::kTables : In::kCsv, false, true},
                     {"key", In::kCsv},
                     {"ranks", In::kAll, true},
                     {"first", In::kAll, false, true, two ? 1 : 0},
                     {"samples/s", In::kTables, true, false, two ? 0 : 1},
                     {"second", In::kAll, false, true, two ? 1 : 0},
                     {"samples/s", In::kTables, true, false, two ? 0 : 1},
                     {"difference (%)", In::kTables, true},
                     {"verdict"}};
  for (const char* statistic : {"first", "second", "effect"}) AddEstimateColumns(statistic, section);
  for (const char* column : {"first_repeats", "second_repeats", "equivalence_p", "fingerprint"})
    section.columns.push_back({column, In::kCsv});
  section.empty = "nothing to compare";
  section.rows = [&comparison](const RowSink& sink) {
    for (const ComparedGroup& group : comparison.groups()) {
      for (const ComparedPair& pair : group.pairs()) {
        std::vector<Cell> row = {ShortKeyText(group.key()),
                                 KeyText(group.key()),
                                 absl::StrCat(group.ranks()),
                                 pair.first(),
                                 Short(pair.first_throughput().mean()),
                                 pair.second(),
                                 Short(pair.second_throughput().mean()),
                                 DifferenceText(pair.effect())};
        row.emplace_back(EnumText(ComparedPair::Verdict_Name(pair.verdict())), VerdictTone(pair.verdict()));
        for (const Estimate* e : {&pair.first_throughput(), &pair.second_throughput(), &pair.effect()})
          AddEstimateCells(e, row);
        row.emplace_back(absl::StrCat(pair.first_repeats()));
        row.emplace_back(absl::StrCat(pair.second_repeats()));
        row.emplace_back(pair.has_equivalence_p() ? Exact(pair.equivalence_p()) : "");
        row.emplace_back(group.fingerprint());
        sink(row);
      }
    }
  };
  return section;
}

absl::StatusOr<ExitCode> CompareWholeStudies(const ComparisonOptions& options, Session& session) {
  auto comparison = ReadComparison("study", options.studies, options.equivalent, session);
  if (!comparison.ok()) return comparison.status();
  if (const absl::Status status = SelectGroups(options.where, *comparison); !status.ok()) return status;
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto curves = ReadCurves(*comparison, NeedFactors(options.panels), **server);
  if (!curves.ok()) return curves.status();
  GetCurveResponse joined = JoinCurves(*curves);
  if (const absl::Status status = SelectPoints(options.where, joined); !status.ok()) return status;
  const std::vector<std::string> notes = CurveNotes(joined);
  const auto picture = [&] {
    if (!options.panels.empty()) return SvgPlot(joined, options.panels, options.figure.style);
    std::vector<Quantity> panels = {Quantity::kThroughput};
    if (MainQuantity(joined) == Quantity::kSpeedup) panels.push_back(Quantity::kSpeedup);
    return SvgPlot(joined, panels, options.figure.style);
  };
  const auto table = [&] { return StudyDifferences(*comparison); };
  if (options.figure.wanted()) {
    std::string comment = absl::StrCat("scalelab study compare ", absl::StrJoin(options.studies, " "),
                                       ": 95% intervals of Welch");
    for (const std::string& note : comparison->notes()) absl::StrAppend(&comment, "\nnote: ", note);
    for (const std::string& note : notes) absl::StrAppend(&comment, "\nnote: ", note);
    const FigureContent content = {picture, table, table, comment};
    if (const absl::Status s = WriteFigure(content, options.figure, session); !s.ok()) return s;
    return ExitCode::kOk;
  }
  if (const absl::Status s = session.Print({*comparison, {table(), DifferenceFacts(*comparison, notes)}});
      !s.ok())
    return s;
  const Terminal& terminal = session.io().out_terminal;
  if (session.tables() && !options.no_plot && (terminal.tty || options.plot)) {
    const std::string plot = TerminalPlot(joined, terminal);
    if (!plot.empty()) session.io().out << '\n' << plot;
    if (const absl::Status s = Flush(session.io().out); !s.ok()) return s;
  }
  if (options.svg.empty()) return ExitCode::kOk;
  if (const absl::Status s = ReplaceFile(options.svg, picture()); !s.ok()) return s;
  session.Say(absl::StrCat("wrote ", options.svg));
  return ExitCode::kOk;
}

}  // namespace scalelab::client
