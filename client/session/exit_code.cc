#include "client/session/exit_code.h"

#include "proto/status.h"

namespace scalelab::client {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return ExitCode::kUsage;
    case absl::StatusCode::kResourceExhausted:
      return ReasonOf(status) == "STUDY_TOO_LARGE" ? ExitCode::kUsage : ExitCode::kFailure;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return ExitCode::kNotAllowed;
    case absl::StatusCode::kUnavailable:
      return ExitCode::kUnreachable;
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kTimeout;
    default:
      return ExitCode::kFailure;
  }
}

absl::Status AsInvalidInput(const absl::Status& status) {
  // A server that is too busy does not make the input invalid.
  if (absl::IsResourceExhausted(status) && ExitCodeOf(status) != ExitCode::kUsage) return status;
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kResourceExhausted: {
      absl::Status invalid = absl::InvalidArgumentError(status.message());
      status.ForEachPayload(
          [&](absl::string_view url, const absl::Cord& payload) { invalid.SetPayload(url, payload); });
      return invalid;
    }
    default:
      return status;
  }
}

}  // namespace scalelab::client
