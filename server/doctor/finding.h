// The result of a check, and its forms for people and programs. Pure.
#pragma once

#include <string>
#include <vector>

namespace scalelab::server::doctor {

struct Finding {
  enum class Level { kOk, kWarning, kError };
  Level level = Level::kOk;
  std::string subject;  // a word: "clock", "data"
  std::string text;     // what is so, in one line
  std::string advice;   // what to do; empty if level is kOk
};
using Findings = std::vector<Finding>;

Finding Ok(std::string subject, std::string text);
Finding Warning(std::string subject, std::string text, std::string advice);
Finding Error(std::string subject, std::string text, std::string advice);

bool HasError(const Findings& findings);

// One line for each finding, and a line that counts them.
std::string TextReport(const Findings& findings);
// {"errors": N, "warnings": N, "checks": [{"check": ..., "level": "ok|warning|error", "text": ..., "advice": ...}]}
std::string JsonReport(const Findings& findings);

}  // namespace scalelab::server::doctor
