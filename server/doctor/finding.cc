#include "server/doctor/finding.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace scalelab::server::doctor {
namespace {

using Level = Finding::Level;

const char* Name(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      return "error";
  }
  return "";
}

long Count(const Findings& findings, Level level) {
  return std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.level == level; });
}

// Joins the lines of a text. Messages of other programs may have several lines.
std::string OneLine(std::string text) {
  absl::StripAsciiWhitespace(&text);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return absl::ascii_iscntrl(c); }, ' ');
  return text;
}

}  // namespace

Finding Ok(std::string subject, std::string text) {
  return {Level::kOk, std::move(subject), OneLine(std::move(text)), ""};
}
Finding Warning(std::string subject, std::string text, std::string advice) {
  return {Level::kWarning, std::move(subject), OneLine(std::move(text)), std::move(advice)};
}
Finding Error(std::string subject, std::string text, std::string advice) {
  return {Level::kError, std::move(subject), OneLine(std::move(text)), std::move(advice)};
}

bool HasError(const Findings& findings) { return Count(findings, Level::kError) > 0; }

std::string TextReport(const Findings& findings) {
  std::string report;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&report, "%-8s %-12s %s%s%s\n", Name(finding.level), finding.subject, finding.text,
                          finding.advice.empty() ? "" : "; ", finding.advice);
  }
  const long errors = Count(findings, Level::kError), warnings = Count(findings, Level::kWarning);
  absl::StrAppend(&report, findings.size(), " checks: ", errors, errors == 1 ? " error, " : " errors, ",
                  warnings, warnings == 1 ? " warning\n" : " warnings\n");
  return report;
}

std::string JsonReport(const Findings& findings) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Finding& finding : findings) {
    nlohmann::json check = {
        {"check", finding.subject}, {"level", Name(finding.level)}, {"text", finding.text}};
    if (!finding.advice.empty()) check["advice"] = finding.advice;
    checks.push_back(std::move(check));
  }
  const nlohmann::json report = {{"errors", Count(findings, Level::kError)},
                                 {"warnings", Count(findings, Level::kWarning)},
                                 {"checks", std::move(checks)}};
  return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace scalelab::server::doctor
