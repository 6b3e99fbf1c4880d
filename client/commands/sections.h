// Tables that more than one command shows.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/output/printer.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/reason.pb.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// Names and values, one a line; entries without a value are left out.
Section Facts(std::vector<std::pair<std::string, Cell>> facts);
// A row a study. Refers to `studies`, which must outlive the printing, as the messages below must.
Section StudyTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Study>& studies);
// A row a run.
Section RunTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Run>& runs);

// The chain of reasons, numbered; how long it has been so and until the next try as seen at `now`.
Section ReasonTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Reason>& reasons, absl::Time now);

Cell StateCell(scalelab::v1::Study::State state);
Cell StateCell(scalelab::v1::Run::State state);
Cell StateCell(scalelab::v1::Attempt::State state);
// "12", or "12 + 6 baseline runs" where communication is measured.
std::string RunsText(int64_t runs, int64_t baseline_runs);
// "9: 1 queued, 1 running, 6 succeeded, 1 failed, 0 cancelled".
std::string CountsText(const scalelab::v1::RunCounts& counts);
// Seconds between two times (to now when the second is not set); empty when the first is not set.
std::string Took(const google::protobuf::Timestamp& start, const google::protobuf::Timestamp& finish);

}  // namespace scalelab::client
