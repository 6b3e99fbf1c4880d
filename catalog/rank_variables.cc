#include "catalog/rank_variables.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"

namespace scalelab {

bool IsRankVariable(absl::string_view name) {
  // The variables that torchrun sets.
  constexpr absl::string_view kNames[] = {"RANK",       "LOCAL_RANK",       "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                          "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",  "ROLE_WORLD_SIZE",
                                          "ROLE_NAME",  "MASTER_ADDR",      "MASTER_PORT"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool IsReservedVariable(absl::string_view name) {
  return IsRankVariable(name) || absl::StartsWith(name, "SCALELAB_") || name == "SLURM_HOSTFILE";
}

}  // namespace scalelab
