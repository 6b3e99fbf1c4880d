// What the fingerprints of hardware and software of a study mean.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "client/session/connection.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::client {

// The nodes of one run of each fingerprint.
using Machines = std::map<std::string, google::protobuf::RepeatedPtrField<scalelab::v1::NodeInfo>>;

// Reads one run of each fingerprint of `runs`. Runs without one have no results and are left out.
absl::StatusOr<Machines> ReadMachines(Connection& server,
                                      const google::protobuf::RepeatedPtrField<scalelab::v1::Run>& runs);

}  // namespace scalelab::client
