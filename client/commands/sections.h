// Tables that more than one command shows.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "client/printer.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// Names and values, one a line; entries without a value are left out.
Section Facts(std::vector<std::pair<std::string, Cell>> facts);
// A row a study. Refers to `studies`, which must outlive the printing, as the messages below must.
Section StudyTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Study>& studies);
// A row a run.
Section RunTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Run>& runs);

Cell StateCell(scalelab::v1::Study::State state);
Cell StateCell(scalelab::v1::Run::State state);
Cell StateCell(scalelab::v1::Attempt::State state);
// Seconds between two times (to now when the second is not set); empty when the first is not set.
std::string Took(const google::protobuf::Timestamp& start, const google::protobuf::Timestamp& finish);

}  // namespace scalelab::client
