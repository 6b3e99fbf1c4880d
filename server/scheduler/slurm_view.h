// Parses the output of sinfo. Pure.
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

// UNAVAILABLE: no line is valid. Ignores single malformed lines.
absl::StatusOr<ClusterView> ParseView(absl::string_view text);

// Adds up the nodes.
Capacity CapacityOf(const ClusterView& view);

// INVALID_ARGUMENT, one sentence: the partition (by default: the default one) has too few nodes that are
// large enough, in whatever state, so the job would be pending forever. OK also when `view` does not
// contain the partition.
absl::Status CheckFits(const ClusterView& view, const JobRequest& request);

}  // namespace scalelab::server
