#include "client/report/report_parts.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/commands/sections.h"
#include "client/output/text.h"
#include "client/report/html.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Axis;
using scalelab::v1::CurveSeries;
using scalelab::v1::Scaling;
using scalelab::v1::StudySpec;

std::string ValuesOf(const Axis& axis) {
  return absl::StrJoin(axis.values(), ", ",
                       [](std::string* out, const auto& value) { absl::StrAppend(out, ValueText(value)); });
}

}  // namespace

std::string HardwareTables(const StudyResults& results) {
  std::map<std::string, std::vector<std::string>> series;  // labels by fingerprint
  for (const CurveSeries& one : results.curve.series()) {
    if (!one.fingerprint().empty()) series[one.fingerprint()].push_back(ShortKeyText(one.key()));
  }
  std::string out;
  for (const auto& [fingerprint, labels] : series) {
    const std::string all = absl::StrJoin(labels, "; ");
    absl::StrAppend(&out, "<h3>Hardware and software ", Html(fingerprint.substr(0, 7)), "</h3>\n",
                    HtmlTable(Facts({{"fingerprint", fingerprint}, {"series", all.empty() ? "all" : all}})));
    if (const auto machine = results.machines.find(fingerprint); machine != results.machines.end())
      out += HtmlTable(NodeFacts(machine->second, {}));
  }
  return out;
}

std::string CodeTables(const StudyResults& results) {
  struct Version {
    const scalelab::v1::CodeSnapshot* code;
    std::vector<std::string> series;  // labels
    int runs = 0;
  };
  std::vector<Version> versions;
  std::map<std::string, size_t> known;  // index into `versions`, by the serialized code
  for (const CurveSeries& series : results.curve.series()) {
    for (const auto& one : series.code_versions()) {
      const auto [it, is_new] = known.try_emplace(one.code().SerializeAsString(), versions.size());
      if (is_new) versions.push_back({&one.code(), {}, 0});
      versions[it->second].series.push_back(ShortKeyText(series.key()));
      versions[it->second].runs += one.runs();
    }
  }
  std::string out;
  for (const Version& version : versions) {
    const std::string all = absl::StrJoin(version.series, "; ");
    out += HtmlTable(CodeFacts(*version.code, {{"series", all.empty() ? "all" : all},
                                               {"successful runs", absl::StrCat(version.runs)}}));
  }
  return out.empty() ? "" : absl::StrCat("<h3>Code</h3>\n", out);
}

std::string HtmlLines(absl::string_view text) {
  std::string out;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) absl::StrAppend(&out, Html(line), "\n");
  return out;
}

std::string ReportHead(const StudyResults& results, absl::string_view kind) {
  const auto& study = results.study;
  std::vector<std::string> facts = {std::string(kind), absl::StrCat("of ", study.owner())};
  if (study.has_create_time()) facts.push_back(absl::StrCat("submitted ", UtcTime(study.create_time())));
  if (study.has_finish_time()) facts.push_back(absl::StrCat("finished ", UtcTime(study.finish_time())));
  facts.push_back(
      absl::StrCat("written ", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", results.now, absl::UTCTimeZone())));
  return absl::StrCat("<h1>", Html(study.display_name()), "</h1>\n<p class=\"dim\">",
                      Html(absl::StrJoin(facts, ", ")), "</p>\n");
}

std::string Question(const StudySpec& spec) {
  std::vector<std::string> axes;
  const auto add = [&axes](const Axis& axis) {
    axes.push_back(absl::StrCat("with ", axis.key(), " (", ValuesOf(axis), ")"));
  };
  for (const Axis& axis : spec.matrix()) add(axis);
  for (const auto& group : spec.zip()) {
    for (const Axis& axis : group.axes()) add(axis);
  }
  const bool weak = spec.scaling().mode() == Scaling::WEAK;
  return absl::StrCat(
      axes.empty() ? "How fast does the training run"
                   : absl::StrCat("How does the speed of training change ", absl::StrJoin(axes, " and ")),
      ", if the batch of ", weak ? "each rank" : "a step over all ranks", " is constant?");
}

Section SetupFacts(const scalelab::v1::Study& study) {
  const StudySpec& spec = study.spec();
  std::vector<std::pair<std::string, Cell>> facts = {
      {"study", study.name()}, {"state", StateCell(study.state())}, {"runs", CountsText(study.counts())}};
  for (const Axis& axis : spec.matrix())
    facts.emplace_back(absl::StrCat("varied: ", axis.key()), ValuesOf(axis));
  for (const auto& group : spec.zip()) {
    for (const Axis& axis : group.axes())
      facts.emplace_back(absl::StrCat("varied together: ", axis.key()), ValuesOf(axis));
  }
  for (const std::string& name : AxesOf({&spec.fixed()}))
    facts.emplace_back(name, ValueText(spec.fixed().fields().at(name)));
  for (const auto& excluded : spec.exclude()) facts.emplace_back("excluded", KeyText(excluded));
  const bool weak = spec.scaling().mode() == Scaling::WEAK;
  facts.emplace_back("scaling", weak ? "weak: the batch of each rank is constant"
                                     : "strong: the batch of a step over all ranks is constant");
  facts.emplace_back("repeats", RepeatsText(spec));
  facts.emplace_back("order", spec.order() == StudySpec::LISTED
                                  ? "as listed in the study file"
                                  : "random within blocks of one repeat of each cell");
  return Facts(std::move(facts));
}

}  // namespace scalelab::client
