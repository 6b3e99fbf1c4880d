// `scalelab plot STUDY`: draws a metric of the runs of a study.
#include <map>

#include "absl/strings/str_cat.h"
#include "client/commands/reports/figure_options.h"
#include "client/commands/reports/reports.h"
#include "client/output/file.h"
#include "client/output/text.h"
#include "client/report/learning_curves.h"
#include "client/selection/run_selection.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

struct PlotOptions {
  std::string study;
  LearningCurves curves;
  FigureTarget figure;
  std::string svg;
  RunSelection runs;  // its `where` only
};

// Returns the table below the picture, with a row for each line.
Section LineTable(const LinePlot& plot) {
  using In = Column::In;
  Section section;
  section.columns = {{"line", In::kAll, false, true},
                     {"run", In::kAll, true},
                     {"points", In::kAll, true},
                     {"first", In::kAll, true},
                     {"last", In::kAll, true}};
  section.rows = [&plot](const RowSink& sink) {
    for (const PlotLine& line : plot.lines)
      sink({line.label, line.source, absl::StrCat(line.x.size()), Short(line.y.front()),
            Short(line.y.back())});
  };
  return section;
}

// Returns the table for CSV, with a row for each point.
Section PointTable(const LinePlot& plot) {
  Section section;
  section.columns = {{"line"}, {"label"}, {"x"}, {"y"}, {"run"}};
  section.rows = [&plot](const RowSink& sink) {
    for (size_t i = 0; i < plot.lines.size(); ++i) {
      const PlotLine& line = plot.lines[i];
      for (size_t k = 0; k < line.x.size(); ++k)
        sink({absl::StrCat(i + 1), line.label, Exact(line.x[k]), Exact(line.y[k]), line.source});
    }
  };
  return section;
}

absl::StatusOr<LinePlot> ReadPlot(const PlotOptions& options, Session& session) {
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  scalelab::v1::GetStudyRequest request;
  request.set_name(*name);
  const auto study =
      (*server)->Call((*server)->studies(), &scalelab::v1::StudyService::Stub::GetStudy, request);
  if (!study.ok()) return study.status();
  auto runs = ListAllRuns(**server, study->study().name());
  if (!runs.ok()) return runs.status();
  if (const absl::Status status = SelectRuns(options.runs, *runs); !status.ok()) return status;
  LearningCurves curves = options.curves;
  curves.timeout = session.options().timeout.value_or(curves.timeout);
  return ReadLearningCurves(**server, study->study().display_name(), *runs, curves);
}

absl::StatusOr<ExitCode> DrawPlot(const PlotOptions& options, Session& session) {
  if (session.options().output == OutputFormat::kJson)
    return absl::InvalidArgumentError(
        "-o json: `plot` has no JSON; use -o csv, or `run metrics RUN -o json`");
  if (const absl::Status status = CheckStyle(options.figure, options.svg); !status.ok()) return status;
  const auto plot = ReadPlot(options, session);
  if (!plot.ok()) return plot.status();
  if (!HasPoints(*plot)) {
    return absl::NotFoundError(absl::StrCat(options.runs.where.empty() ? "no run" : "no selected run",
                                            " has points of ", options.curves.key,
                                            "; `scalelab run metrics RUN` lists the metrics of a run"));
  }
  if (options.figure.wanted()) {
    const FigureContent content = {
        [&] { return SvgLines(*plot, options.figure.style); }, [&] { return LineTable(*plot); },
        [&] { return PointTable(*plot); },
        absl::StrCat("scalelab plot ", options.study, " --y ", options.curves.key)};
    if (const absl::Status s = WriteFigure(content, options.figure, session); !s.ok()) return s;
    return ExitCode::kOk;
  }
  if (!options.svg.empty()) {
    if (const absl::Status status = ReplaceFile(options.svg, SvgLines(*plot, options.figure.style));
        !status.ok())
      return status;
    session.Say(absl::StrCat("wrote ", options.svg));
    return ExitCode::kOk;
  }
  const scalelab::v1::ReadPointsResponse unused;  // JSON is refused above
  if (session.tables()) {
    session.io().out << TerminalLines(*plot, session.io().out_terminal) << '\n';
    if (const absl::Status s = session.Print({unused, {LineTable(*plot)}}); !s.ok()) return s;
    return ExitCode::kOk;
  }
  if (const absl::Status s = session.Print({unused, {PointTable(*plot)}}); !s.ok()) return s;
  return ExitCode::kOk;
}

}  // namespace

void AddPlot(CLI::App& app, Action& chosen) {
  using X = LearningCurves::X;
  static const std::map<std::string, X> kAxes = {
      {"step", X::kStep}, {"time", X::kTime}, {"samples", X::kSamples}};
  auto options = std::make_shared<PlotOptions>();
  CLI::App* command =
      app.add_subcommand("plot", "Draw a metric of all runs of a study, such as learning curves");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  command->add_option("--y", options->curves.key, "Metric, for example train/loss or eval/accuracy")
      ->capture_default_str();
  command
      ->add_option_function<std::string>(
          "--x", [options](const std::string& name) { options->curves.x = kAxes.at(name); },
          "step (the epoch of an epoch's metric), time or samples")
      ->check(CLI::IsMember({"step", "time", "samples"}));
  command
      ->add_option("--by", options->curves.by,
                   "Axes that have a colour for each value; by default those that differ")
      ->delimiter(',');
  command
      ->add_option("--where", options->runs.where,
                   "Only runs that fulfil conditions, for example 'engine=native/* and "
                   "params.dropout>=0.1'; may be repeated")
      ->allow_extra_args(false);
  AddFigureOptions(*command, options->figure);
  command->add_option("--svg", options->svg, "Write the picture to this SVG file")->check(IsSvgFile());
  command->callback([options, &chosen] { chosen = [options](Session& s) { return DrawPlot(*options, s); }; });
}

}  // namespace scalelab::client
