// `scalelab study report STUDY`: writes a page with the results of a study.
#include "client/report/study_report.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/commands/reports/reports.h"
#include "client/output/file.h"
#include "client/report/learning_curves.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::GetCurveRequest;
using scalelab::v1::GetStudyRequest;
using scalelab::v1::ResultService;
using scalelab::v1::StudyService;

struct ReportOptions {
  std::string study;
  std::string file;
  bool proposal = false;
  double least_efficiency = 70;  // percent
};

// The metrics whose learning curves a report shows.
constexpr const char* kMetrics[] = {"train/loss", "eval/accuracy"};

absl::StatusOr<ExitCode> WriteReport(const ReportOptions& options, Session& session) {
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  GetStudyRequest of_study;
  of_study.set_name(*name);
  const auto study = (*server)->Call((*server)->studies(), &StudyService::Stub::GetStudy, of_study);
  if (!study.ok()) return study.status();
  GetCurveRequest of_curve;
  of_curve.set_study(study->study().name());
  const auto curve = (*server)->Call((*server)->results(), &ResultService::Stub::GetCurve, of_curve);
  if (!curve.ok()) return curve.status();
  const auto runs = ListAllRuns(**server, study->study().name());
  if (!runs.ok()) return runs.status();
  auto machines = ReadMachines(**server, *runs);
  if (!machines.ok()) return machines.status();
  StudyResults results{study->study(), *runs, *curve, {}, session.now(), *std::move(machines)};
  for (const char* metric : kMetrics) {
    if (options.proposal) break;
    LearningCurves curves;
    curves.key = metric;
    curves.timeout = session.options().timeout.value_or(curves.timeout);
    auto plot = ReadLearningCurves(**server, metric, *runs, curves);
    if (!plot.ok()) return plot.status();
    results.learning.push_back(*std::move(plot));
  }
  const std::string page =
      options.proposal ? ScalingProposal(results, options.least_efficiency / 100) : StudyReport(results);
  if (options.file == "-") {
    session.io().out << page;
    if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
    return ExitCode::kOk;
  }
  if (const absl::Status status = ReplaceFile(options.file, page); !status.ok()) return status;
  session.Say(absl::StrCat("wrote ", options.file));
  return ExitCode::kOk;
}

}  // namespace

void AddStudyReport(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      study.add_subcommand("report", "Write a page with curves, tables and how to repeat the study");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  command->add_option("-o,--file", options->file, "HTML file to write; - writes to standard output")
      ->required();
  auto* proposal = command->add_flag("--proposal", options->proposal,
                                     "Write the scaling page of an application for computing time");
  command->add_option("--min-efficiency", options->least_efficiency, "Percent that counts as efficient (70)")
      ->check(CLI::Range(1.0, 100.0))
      ->check([](const std::string& text) {
        // CLI::Range accepts NaN, which is neither below nor above the range.
        double percent = 0;
        const bool number = absl::SimpleAtod(text, &percent) && !std::isnan(percent);
        return number ? std::string() : absl::StrCat("'", text, "' is not a number");
      })
      ->needs(proposal);
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return WriteReport(*options, s); }; });
}

}  // namespace scalelab::client
