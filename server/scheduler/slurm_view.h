// What sinfo prints, and what follows from it. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// The columns to ask sinfo -N for, in the order ParseView expects: one row for each node of each partition.
inline constexpr absl::string_view kSinfoColumns =
    "NodeList:0|,Partition:0|,Available:0|,Time:0|,StateLong:0|,CPUsState:0|,Memory:0|,Gres:0|,GresUsed:0|,"
    "Reason:0";

// UNAVAILABLE: the text is no answer of sinfo. Single lines that are no row are left out.
absl::StatusOr<ClusterView> ParseView(absl::string_view text);

Capacity CapacityOf(const ClusterView& view);

// INVALID_ARGUMENT, one sentence: the partition (or what it stands for) has not so many nodes that are large
// enough, whatever their state: the job would wait for ever. OK also when `view` does not know the partition.
absl::Status CheckFits(const ClusterView& view, const JobRequest& request);

}  // namespace scalelab::server
