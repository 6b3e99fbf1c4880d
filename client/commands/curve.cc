// `scalelab curve STUDY`: shows scaling curves as a table and a terminal plot, and writes them as SVG.
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/commands/analysis_tables.h"
#include "client/commands/commands.h"
#include "client/commands/curve_table.h"
#include "client/commands/sections.h"
#include "client/factors/factor_table.h"
#include "client/plots/svg_plot.h"
#include "client/plots/terminal_plot.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::AnalysisService;
using scalelab::v1::CompareCellsRequest;
using scalelab::v1::GetCurveRequest;
using scalelab::v1::ResultService;

struct CurveOptions {
  std::string study;
  std::string compare;            // an axis
  std::vector<std::string> with;  // other studies
  std::string equivalent;
  bool factors = false;
  std::string svg;
  bool plot = false;
  bool no_plot = false;
};

// Compares the values of an axis in place of showing the curve.
absl::StatusOr<ExitCode> Compare(const CurveOptions& options, Session& session) {
  CompareCellsRequest request;
  request.set_axis(options.compare);
  std::vector<std::string> studies = {options.study};
  studies.insert(studies.end(), options.with.begin(), options.with.end());
  for (const std::string& study : studies) {
    const auto name = StudyName(study);
    if (!name.ok()) return name.status();
    request.add_studies(*name);
  }
  if (!options.equivalent.empty()) {
    const auto share = ShareOf("--equivalent", options.equivalent);
    if (!share.ok()) return share.status();
    request.set_equivalent(*share);
  }
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto comparison =
      (*server)->Call((*server)->analysis(), &AnalysisService::Stub::CompareCells, request);
  if (!comparison.ok()) return comparison.status();
  if (const absl::Status s =
          session.Print({*comparison, {ComparisonTable(*comparison), ComparisonFacts(*comparison)}});
      !s.ok())
    return s;
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> ExecuteCurve(const CurveOptions& options, Session& session) {
  if (!options.compare.empty()) return Compare(options, session);
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  GetCurveRequest request;
  request.set_study(*name);
  request.set_factors(options.factors);
  const auto curve = (*server)->Call((*server)->results(), &ResultService::Stub::GetCurve, request);
  if (!curve.ok()) return curve.status();

  const absl::Status printed =
      options.factors ? session.Print({*curve, {FactorTable(*curve), Facts(FactorFacts(*curve))}})
                      : session.Print({*curve, {CurveTable(*curve), CurveFacts(*curve)}});
  if (!printed.ok()) return printed;
  const Terminal& terminal = session.io().out_terminal;
  if (session.tables() && !options.factors && !options.no_plot && (terminal.tty || options.plot)) {
    const std::string plot = TerminalPlot(*curve, terminal);
    if (!plot.empty()) session.io().out << '\n' << plot;
    if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
  }
  if (!options.svg.empty()) {
    std::ofstream file(options.svg, std::ios::binary);
    file << SvgPlot(*curve);
    file.close();
    if (!file)
      return absl::UnknownError(
          absl::StrCat("cannot write ", options.svg, ": does its directory exist, and may you write there?"));
    session.Say(absl::StrCat("wrote ", options.svg));
  }
  return ExitCode::kOk;
}

}  // namespace

void AddCurve(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<CurveOptions>();
  CLI::App* command = app.add_subcommand("curve", "Show the scaling curves of a study");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  command->add_option("--svg", options->svg, "Also write the curves to this SVG file");
  auto* factors = command->add_flag("--factors", options->factors,
                                    "Show why it stops scaling: load balance, communication, slowest rank, "
                                    "critical batch; in the SVG file too");
  auto* compare = command->add_option(
      "--compare", options->compare,
      "Compare the values of this axis, for example engine, in place of showing the curve");
  compare->excludes(factors);
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
