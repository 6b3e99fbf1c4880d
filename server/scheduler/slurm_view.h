// Parses the output of sinfo. The functions are pure.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// The columns of sinfo -N that ParseView expects, in order. sinfo -N prints one row for each node
// of each partition.
inline constexpr absl::string_view kSinfoColumns =
    "NodeList:0|,Partition:0|,Available:0|,Time:0|,StateLong:0|,CPUsState:0|,Memory:0|,Gres:0|,GresUsed:0|,"
    "Reason:0";

// Parses the output of sinfo. Ignores malformed lines; returns UNAVAILABLE if no line is valid.
absl::StatusOr<ClusterView> ParseView(absl::string_view text);

// Adds up the nodes.
Capacity CapacityOf(const ClusterView& view);

// Returns INVALID_ARGUMENT if the job would be pending forever, because its partition (or the default
// partition) has too few nodes that are large enough. Counts nodes in any state. Returns OK if `view` does
// not contain the partition.
absl::Status CheckFits(const ClusterView& view, const JobRequest& request);

}  // namespace scalelab::server
