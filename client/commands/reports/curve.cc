// `scalelab curve STUDY`: shows scaling curves as a table and a terminal plot, and writes them as figures.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/analysis_tables.h"
#include "client/commands/curve_table.h"
#include "client/commands/reports/comparison.h"
#include "client/commands/reports/figure_options.h"
#include "client/commands/reports/reports.h"
#include "client/commands/sections.h"
#include "client/factors/factor_table.h"
#include "client/figures/curve_figure.h"
#include "client/output/file.h"
#include "client/plots/curve_view.h"
#include "client/plots/svg_plot.h"
#include "client/plots/terminal_plot.h"
#include "client/selection/conditions.h"
#include "client/selection/curve_selection.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::GetCurveRequest;
using scalelab::v1::GetCurveResponse;
using scalelab::v1::ResultService;

constexpr size_t kMostRows = 50;  // of a table on a terminal

struct CurveOptions {
  std::vector<std::string> studies;
  std::string compare;            // axis whose values to compare
  std::vector<std::string> with;  // other studies
  std::string equivalent;
  bool factors = false;
  std::string reference;           // study whose convergence is the reference; empty: none
  std::vector<std::string> where;  // conditions on points
  std::string sort;                // of the rows, as in RowOrder
  int limit = 0;                   // of the rows; 0: none
  FigureTarget figure;
  std::vector<std::string> panels;
  std::string svg;
  bool plot = false;
  bool no_plot = false;
};

// Compares the values of an axis, instead of showing the curve.
absl::StatusOr<ExitCode> Compare(const CurveOptions& options, Session& session) {
  if (options.figure.wanted() || options.figure.styled() || !options.svg.empty() || !options.panels.empty() ||
      options.plot)
    return absl::InvalidArgumentError(
        "--compare prints a table and has no figure: leave out --file, --format, --svg, --panels, --title, "
        "--width, --no-n and --plot, or use -o csv");
  std::vector<std::string> studies = options.studies;
  studies.insert(studies.end(), options.with.begin(), options.with.end());
  const auto comparison = ReadComparison(options.compare, studies, options.equivalent, session);
  if (!comparison.ok()) return comparison.status();
  const std::vector<std::string> notes = MeasurementNotes(*comparison);
  if (const absl::Status s =
          session.Print({*comparison, {ComparisonTable(*comparison), ComparisonFacts(*comparison, notes)}});
      !s.ok())
    return s;
  return ExitCode::kOk;
}

// Returns the table with the rows of these indices, in this order.
Section WithRows(Section table, std::vector<int> order) {
  table.rows = [rows = std::move(table.rows), order = std::move(order)](const RowSink& sink) {
    std::vector<std::vector<Cell>> all;
    rows([&all](const std::vector<Cell>& row) { all.push_back(row); });
    for (const int row : order) sink(all[static_cast<size_t>(row)]);
  };
  return table;
}

// Returns INVALID_ARGUMENT if the command prints or writes no table that --sort and --limit could change.
absl::Status CheckRows(const CurveOptions& options, const Session& session) {
  if (options.sort.empty() && options.limit == 0) return absl::OkStatus();
  if (options.studies.size() > 1)
    return absl::InvalidArgumentError("--sort and --limit choose rows of one study; name one only");
  bool table = session.options().output != OutputFormat::kJson;
  if (options.figure.wanted()) {
    const auto format = FigureFormatOf(options.figure);
    if (!format.ok()) return format.status();
    table = *format == FigureFormat::kLatex || *format == FigureFormat::kCsv;
  }
  if (table) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--sort and --limit choose rows of a table: leave them out for pictures and with -o json; --where "
      "selects points there, too");
}

// Writes the figure, instead of showing the curve. With --factors, tables have the factors of the efficiency
// in place of the panels' quantities.
absl::StatusOr<ExitCode> WriteCurve(const GetCurveResponse& curve, const CurveOptions& options,
                                    const std::vector<Quantity>& panels, const std::vector<int>& rows,
                                    Session& session) {
  std::string comment = absl::StrCat("scalelab curve ", curve.study(), " (", curve.display_name(),
                                     "): means with 95% intervals over repeats");
  for (const std::string& note : CurveNotes(curve)) absl::StrAppend(&comment, "\nnote: ", note);
  const PictureStyle& style = options.figure.style;
  const auto table = [&] {
    if (options.factors) return FactorTable(curve, style.repeats);
    return WithRows(FigureTable(curve, panels, style.repeats), rows);
  };
  const auto csv_table = [&] {
    if (options.factors) return FactorTable(curve);
    Section all = WithRows(CurveTable(curve), rows);
    return options.panels.empty() ? all : WithStatisticsOf(panels, std::move(all));
  };
  const FigureContent content = {[&] { return SvgPlot(curve, panels, style); }, table, csv_table, comment};
  if (const absl::Status status = WriteFigure(content, options.figure, session); !status.ok()) return status;
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> ExecuteCurve(const CurveOptions& options, Session& session) {
  if (!options.compare.empty()) return Compare(options, session);
  auto panels = QuantitiesOf(options.panels);
  if (!panels.ok()) return panels.status();
  const bool several = options.studies.size() > 1;
  const absl::string_view fixed_table = several           ? kTableOfComparison
                                        : options.factors ? "a table of --factors has the factors"
                                                          : "";
  if (const absl::Status status = CheckPanels(*panels, options.figure, options.svg, fixed_table);
      !status.ok())
    return status;
  if (const absl::Status status = CheckStyle(options.figure, options.svg); !status.ok()) return status;
  if (const absl::Status status = CheckRows(options, session); !status.ok()) return status;
  if (several) {
    if (options.factors) return absl::InvalidArgumentError("--factors explains one study; name one only");
    return CompareWholeStudies({options.studies, "", *panels, options.figure, options.svg, options.plot,
                                options.no_plot, options.where},
                               session);
  }
  const auto name = StudyName(options.studies.front());
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  GetCurveRequest request;
  request.set_study(*name);
  const bool goodput = NeedFactors(*panels) || ParseSorting(options.sort).field == "goodput";
  request.set_factors(options.factors || goodput);
  if (!options.reference.empty()) {
    const auto reference = StudyName(options.reference);
    if (!reference.ok()) return reference.status();
    request.set_reference(*reference);
  }
  auto curve = (*server)->Call((*server)->results(), &ResultService::Stub::GetCurve, request);
  if (!curve.ok()) return curve.status();
  if (goodput && !options.factors) KeepGoodput(*curve);
  if (const absl::Status status = SelectPoints(options.where, *curve); !status.ok()) return status;
  const auto rows = RowOrder(options.sort, options.limit, *curve);
  if (!rows.ok()) return rows.status();

  if (panels->empty()) *panels = UsualPanels(*curve);
  if (options.figure.wanted()) return WriteCurve(*curve, options, *panels, *rows, session);
  Section table = options.factors ? FactorTable(*curve) : WithRows(CurveTable(*curve), *rows);
  table.most_rows = kMostRows;
  table.more_rows = options.factors ? "--where selects rows, " : "--where, --sort and --limit select rows, ";
  if (!options.where.empty()) table.empty = "no such points";
  Section facts = options.factors ? Facts(FactorFacts(*curve)) : CurveFacts(*curve);
  if (const absl::Status status = session.Print({*curve, {std::move(table), std::move(facts)}}); !status.ok())
    return status;
  const Terminal& terminal = session.io().out_terminal;
  if (session.tables() && !options.factors && !options.no_plot && (terminal.tty || options.plot)) {
    const std::string plot = TerminalPlot(*curve, terminal);
    if (!plot.empty()) session.io().out << '\n' << plot;
    if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
  }
  if (!options.svg.empty()) {
    if (const absl::Status status = ReplaceFile(options.svg, SvgPlot(*curve, *panels, options.figure.style));
        !status.ok())
      return status;
    session.Say(absl::StrCat("wrote ", options.svg));
  }
  return ExitCode::kOk;
}

}  // namespace

void AddCurve(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<CurveOptions>();
  CLI::App* command = app.add_subcommand("curve", "Show the scaling curves of a study, or compare several");
  command
      ->add_option("STUDIES", options->studies, "Number, name, or last; several are compared with each other")
      ->required();
  AddFigureOptions(*command, options->figure);
  AddPanels(*command, options->panels, options->figure.style);
  command->add_option("--svg", options->svg, "Also write the curves to this SVG file")->check(IsSvgFile());
  auto* factors = command->add_flag("--factors", options->factors,
                                    "Show why it stops scaling: load balance, communication, slowest rank, "
                                    "critical batch; in files too");
  command
      ->add_option(
          "--reference", options->reference,
          "A study whose runs are the reference for the samples until target_accuracy: number, name, or "
          "last")
      ->needs(factors);
  auto* compare = command->add_option(
      "--compare", options->compare,
      "Compare the values of this axis, for example engine, in place of showing the curve");
  compare->excludes(factors);
  command
      ->add_option("--where", options->where,
                   "Only points that fulfil conditions on axes, for example 'engine=native/* and ranks>=4'; "
                   "may be repeated")
      ->allow_extra_args(false)
      ->excludes(compare);
  auto* sort = command->add_option(
      "--sort", options->sort,
      absl::StrCat("Sort the rows of the table by an axis, ranks, ", absl::StrJoin(kQuantityNames, ", "),
                   "; -throughput: the largest first"));
  sort->excludes(compare)->excludes(factors);
  auto* limit = command->add_option("--limit", options->limit, "At most this number of rows in the table");
  limit->check(CLI::PositiveNumber)->excludes(compare)->excludes(factors);
  command
      ->add_option("--with", options->with, "Other studies on the same hardware and software to compare with")
      ->needs(compare);
  command
      ->add_option("--equivalent", options->equivalent,
                   "Relative difference that does not matter, for example 2%")
      ->needs(compare);
  auto* plot = command->add_flag("--plot", options->plot, "Plot even if standard output is not a terminal");
  command->add_flag("--no-plot", options->no_plot, "Do not plot on a terminal")->excludes(plot);
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteCurve(*options, session); };
  });
}

}  // namespace scalelab::client
