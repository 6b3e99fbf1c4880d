#include "client/report/study_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/commands/curve_table.h"
#include "client/commands/sections.h"
#include "client/export/study_yaml.h"
#include "client/output/text.h"
#include "client/plots/svg_plot.h"
#include "client/report/html.h"
#include "client/report/report_parts.h"

namespace scalelab::client {
namespace {

using google::protobuf::RepeatedPtrField;
using scalelab::v1::Attempt;
using scalelab::v1::CurveSeries;
using scalelab::v1::Run;

constexpr int kMostFailures = 200;

std::string Chapter(absl::string_view title, const std::string& body) {
  return body.empty() ? "" : absl::StrCat("<h2>", Html(title), "</h2>\n", body);
}

// Returns the list of the runs that did not succeed, with their reasons.
std::string Failures(const RepeatedPtrField<Run>& runs) {
  RepeatedPtrField<Run> failed;
  int count = 0;
  for (const Run& run : runs) {
    if (run.state() != Run::FAILED && run.state() != Run::CANCELLED) continue;
    if (++count <= kMostFailures) *failed.Add() = run;
  }
  if (count == 0) return "<p>Every run that ended has succeeded.</p>\n";
  Section section;
  section.columns = {{"run", Column::In::kAll, true},
                     {"cell"},
                     {"repeat", Column::In::kAll, true},
                     {"state"},
                     {"cause"},
                     {"why", Column::In::kAll, false, true}};
  section.rows = [&failed](const RowSink& sink) {
    for (const Run& run : failed) {
      sink({LastPart(run.name()), ShortKeyText(run.key()), absl::StrCat(run.repeat()), StateCell(run.state()),
            EnumText(Attempt::Cause_Name(run.cause())), run.message()});
    }
  };
  std::string out = HtmlTable(section);
  if (count > kMostFailures)
    absl::StrAppend(&out, "<p class=\"dim\">and ", count - kMostFailures, " more.</p>\n");
  return out;
}

// Returns the section about the origin of the figures.
std::string Provenance(const StudyResults& results) {
  const auto& study = results.study;
  std::vector<std::pair<std::string, Cell>> facts = {{"study", study.name()},
                                                     {"owner", study.owner()},
                                                     {"submitted", UtcTime(study.create_time())},
                                                     {"first run started", UtcTime(study.start_time())},
                                                     {"last run finished", UtcTime(study.finish_time())},
                                                     {"seed", absl::StrCat(study.spec().seed())}};
  if (study.has_origin()) {
    facts.emplace_back("imported from",
                       absl::StrCat(study.origin().study(), " of ", study.origin().server()));
    facts.emplace_back("SHA-256 of its bundle", study.origin().sha256());
  }
  facts.emplace_back("page written by", absl::StrCat("scalelab ", SCALELAB_VERSION));
  return HtmlTable(Facts(std::move(facts)));
}

}  // namespace

std::string StudyReport(const StudyResults& results) {
  const auto& study = results.study;
  std::string body = ReportHead(results, "Scaling study");
  body += Chapter("Question", absl::StrCat("<p>", Html(Question(study.spec())), "</p>\n"));
  body += Chapter("Setup", HtmlTable(SetupFacts(study)));
  const bool any = std::any_of(results.curve.series().begin(), results.curve.series().end(),
                               [](const CurveSeries& series) { return series.points_size() > 0; });
  if (any) {
    body += Chapter("Scaling",
                    absl::StrCat(HtmlPicture(SvgPlot(results.curve)), HtmlTable(CurveTable(results.curve)),
                                 HtmlTable(CurveFacts(results.curve))));
  }
  std::string learning;
  for (const LinePlot& plot : results.learning) {
    if (HasPoints(plot)) learning += HtmlPicture(SvgLines(plot));
  }
  body += Chapter("Learning curves", learning);
  body += Chapter("Failures", Failures(results.runs));
  body += Chapter("Provenance", Provenance(results) + HardwareTables(results) + CodeTables(results));
  body +=
      Chapter("Repeat this study", absl::StrCat("<p>Save these lines as <code>study.yaml</code>, then run "
                                                "<code>scalelab study submit study.yaml</code>.</p>\n<pre>",
                                                HtmlLines(StudyYaml(study.spec())), "</pre>\n"));
  return HtmlPage(study.display_name(), body);
}

}  // namespace scalelab::client
