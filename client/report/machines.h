// Describes the hardware and software that each fingerprint of a study identifies.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "client/session/connection.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::client {

// Maps each fingerprint to the nodes of one of its runs.
using Machines = std::map<std::string, google::protobuf::RepeatedPtrField<scalelab::v1::NodeInfo>>;

// Reads one run for each fingerprint in `runs`. Ignores runs without a fingerprint, which have no results.
absl::StatusOr<Machines> ReadMachines(Connection& server,
                                      const google::protobuf::RepeatedPtrField<scalelab::v1::Run>& runs);

}  // namespace scalelab::client
