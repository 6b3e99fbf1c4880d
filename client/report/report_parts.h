// What the report and the proposal have in common. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "client/output/printer.h"
#include "client/report/study_report.h"

namespace scalelab::client {

// Returns the title and the line below it: `kind`, owner, number of runs, dates.
std::string ReportHead(const StudyResults& results, absl::string_view kind);
// Returns what the study asks, in one sentence.
std::string Question(const scalelab::v1::StudySpec& spec);
// Returns what was run, one fact per line.
Section SetupFacts(const scalelab::v1::Study& study);
// Returns a table for each fingerprint of hardware and software: its series, and its nodes if they are known.
std::string HardwareTables(const StudyResults& results);
// Returns text of several lines, escaped, with its line breaks.
std::string HtmlLines(absl::string_view text);

}  // namespace scalelab::client
