// The parts of a page that the report and the proposal share. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "client/output/printer.h"
#include "client/report/study_report.h"

namespace scalelab::client {

// Returns the title and the line below it: `kind`, owner, number of runs, dates.
std::string ReportHead(const StudyResults& results, absl::string_view kind);
// Returns the question of the study in one sentence.
std::string Question(const scalelab::v1::StudySpec& spec);
// Returns the setup of the study, one fact per line.
Section SetupFacts(const scalelab::v1::Study& study);
// Returns a table for each fingerprint of hardware and software: its series, and its nodes if they are known.
std::string HardwareTables(const StudyResults& results);
// Returns a table for each version of the user's program that the runs of the curve executed; "" if there are none.
std::string CodeTables(const StudyResults& results);
// Returns escaped text in which line breaks are kept.
std::string HtmlLines(absl::string_view text);

}  // namespace scalelab::client
