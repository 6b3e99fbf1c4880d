// Conditions on studies, and their order. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// As RunSelection. A study has the fields number, name, owner, state, and the numbers of its runs: queued, running,
// succeeded, failed, cancelled.
struct StudySelection {
  std::vector<std::string> where;
  std::string sort;  // empty: the given order
  int limit = 0;     // 0: no limit
};

// Keeps the selected studies, in the wanted order. INVALID_ARGUMENT if `where` or `sort` cannot be understood.
absl::Status SelectStudies(const StudySelection& selection,
                           google::protobuf::RepeatedPtrField<scalelab::v1::Study>& studies);

}  // namespace scalelab::client
