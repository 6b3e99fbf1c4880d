// The settings of the configuration for sharing the cluster. They can be changed while the coordinator runs.
#pragma once

#include "server/core/fair/limits.h"
#include "server/core/fair/usage.h"

namespace scalelab::server {

struct Policy {
  FairShare fair_share;
  Limits limits;
  bool operator==(const Policy&) const = default;
};

}  // namespace scalelab::server
