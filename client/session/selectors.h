// From what a user types for studies and runs to resource names.
//
//   last, 7, studies/7, resnet20-strong    one study (a display name means the newest of that name)
//   1-3,5,resnet20-strong                  several, in that order, each once
//   all                                    every study
//   12, runs/12, studies/7/runs/12         one run; 12-15,20 several
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/session/connection.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// The longest range taken, so that a slip of the finger does not become a million calls.
inline constexpr int64_t kMaxSelected = 10'000;

// INVALID_ARGUMENT says what is wrong with the selector. None of these asks the server.
absl::StatusOr<std::string> StudyName(absl::string_view selector);
absl::StatusOr<std::string> RunName(absl::string_view selector);
absl::StatusOr<std::vector<std::string>> StudyNames(absl::string_view selector);
absl::StatusOr<std::vector<std::string>> RunNames(absl::string_view selector);

// Every study, newest first, all pages.
absl::StatusOr<scalelab::v1::ListStudiesResponse> ListAllStudies(Connection& server);
// The studies a selector means, "all" and "last" included, each looked up: NOT_FOUND names the first that is
// not there.
absl::StatusOr<std::vector<scalelab::v1::Study>> FindStudies(Connection& server, absl::string_view selector);

}  // namespace scalelab::client
