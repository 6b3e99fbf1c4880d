// The result of a check, and the reports as text and JSON. Pure functions.
#pragma once

#include <string>
#include <vector>

namespace scalelab::server::doctor {

struct Finding {
  enum class Level { kOk, kWarning, kError };
  Level level = Level::kOk;
  std::string subject;  // a word: "clock", "data"
  std::string text;     // what the check has found, in one line
  std::string advice;   // what to do; empty if level is kOk
};
using Findings = std::vector<Finding>;

Finding Ok(std::string subject, std::string text);
Finding Warning(std::string subject, std::string text, std::string advice);
Finding Error(std::string subject, std::string text, std::string advice);

bool HasError(const Findings& findings);

// Returns a line for each finding, and a last line with the numbers of errors and warnings.
std::string TextReport(const Findings& findings);
// Returns {"errors": N, "warnings": N, "checks": [{"check": ..., "level": "ok|warning|error", "text":
// ..., "advice": ...}]}
std::string JsonReport(const Findings& findings);

}  // namespace scalelab::server::doctor
