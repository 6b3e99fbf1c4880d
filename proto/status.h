// Converts between absl::Status and gRPC status with google.rpc error details. So most code uses
// absl::Status, and only RPC handlers and clients use gRPC's. The details are payloads of the absl::Status,
// with their type URLs as keys. All functions are thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace scalelab {

// An invalid field of a request: its path ("matrix.engine[1]") and one sentence.
struct FieldViolation {
  std::string field;
  std::string description;
  bool operator==(const FieldViolation&) const = default;
};

// Returns an error with google.rpc.ErrorInfo{reason, domain "scalelab"}. `reason` is UPPER_SNAKE_CASE and
// never changes once released.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message);

// Returns INVALID_ARGUMENT. The message is the first violation and the number of further ones; all violations
// are attached as google.rpc.BadRequest. `violations` must not be empty.
absl::Status InvalidFields(std::vector<FieldViolation> violations);

// Returns `status` with the violations attached, for errors of another code that are caused by fields.
absl::Status WithViolations(absl::Status status, std::vector<FieldViolation> violations);

// Returns the violations attached to an error; empty if there are none.
std::vector<FieldViolation> ViolationsOf(const absl::Status& status);
// Returns the reason of the attached ErrorInfo; empty if there is none.
std::string ReasonOf(const absl::Status& status);

// ToGrpc shortens errors to fit into gRPC's 8 KiB of trailing metadata: the message to 600 bytes, the
// violations to about 4 KiB with a last one that has the number of the others. It replaces bytes that are not
// valid UTF-8 by '?'.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace scalelab
