// Conditions on studies. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// Keeps the studies that fulfil the conditions, in the syntax of RunSelection. A study has the fields number, name, owner,
// state, and the numbers of its runs: queued, running, succeeded, failed, cancelled. INVALID_ARGUMENT if a condition
// cannot be understood.
absl::Status SelectStudies(const std::vector<std::string>& where,
                           google::protobuf::RepeatedPtrField<scalelab::v1::Study>& studies);

}  // namespace scalelab::client
