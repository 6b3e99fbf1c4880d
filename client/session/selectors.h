// Conversion of what users type for studies and runs to resource names.
//
//   last, 7, studies/7, resnet20-strong    one study (a display name means the newest of that name)
//   1-3,5,resnet20-strong                  several studies, in this order, without duplicates
//   all                                    every study
//   12, runs/12, studies/7/runs/12         one run; 12-15,20: several runs
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/session/connection.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// The longest range accepted, so that a typing mistake does not lead to a million calls.
inline constexpr int64_t kMaxSelected = 10'000;

// Return INVALID_ARGUMENT with what is wrong with the selector. None of these functions calls the server.
absl::StatusOr<std::string> StudyName(absl::string_view selector);
absl::StatusOr<std::string> RunName(absl::string_view selector);
absl::StatusOr<std::vector<std::string>> StudyNames(absl::string_view selector);
absl::StatusOr<std::vector<std::string>> RunNames(absl::string_view selector);

// Returns the newest `limit` studies, newest first. 0: all, from all pages.
absl::StatusOr<scalelab::v1::ListStudiesResponse> ListAllStudies(Connection& server, int limit = 0);
// Returns the studies that `selector` means, including "all" and "last". Looks each one up; NOT_FOUND names
// the first that does not exist. `limit` is for "all", as in ListAllStudies.
absl::StatusOr<std::vector<scalelab::v1::Study>> FindStudies(Connection& server, absl::string_view selector,
                                                             int limit = 0);

}  // namespace scalelab::client
