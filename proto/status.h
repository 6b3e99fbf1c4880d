// absl::Status <-> gRPC status with google.rpc error details, so that rooms speak absl::Status and only
// handlers and clients know gRPC. Details travel as absl::Status payloads under their type URL.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace scalelab {

// One wrong field of a request: path ("matrix.engine[1]") and a sentence.
struct FieldViolation {
  std::string field;
  std::string description;
  bool operator==(const FieldViolation&) const = default;
};

// An error with google.rpc.ErrorInfo{reason, domain "scalelab"}. `reason` is UPPER_SNAKE_CASE and stable.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message);

// INVALID_ARGUMENT whose message is the first violation (and says how many more), with all of them as
// BadRequest. `violations` must not be empty.
absl::Status InvalidFields(std::vector<FieldViolation> violations);

// `status` with these violations attached: for errors of another code whose cause is a field all the same.
absl::Status WithViolations(absl::Status status, std::vector<FieldViolation> violations);

// The violations an error carries; empty when none.
std::vector<FieldViolation> ViolationsOf(const absl::Status& status);
// The reason of an error's ErrorInfo; empty when none.
std::string ReasonOf(const absl::Status& status);

// What does not fit into gRPC's 8 KiB of trailing metadata is cut: the message at 600 bytes, the violations
// after about 4 KiB with a last one that counts the rest. Bytes that are not UTF-8 become '?'.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace scalelab
