// The environment variables that scalelab sets for a rank (docs/users/write-a-training-script.md).
#pragma once

#include "absl/strings/string_view.h"

namespace scalelab {

// Prefix of the variable with a parameter of a user's own: SCALELAB_PARAM_DROPOUT has params.dropout.
inline constexpr char kParamVariable[] = "SCALELAB_PARAM_";

// The variable that lets the C library's malloc use huge pages, and its value (glibc's manual, "Memory Allocation Tunables"). The C
// library reads it when a program starts, before it loads libraries.
inline constexpr char kMallocTunables[] = "GLIBC_TUNABLES";
inline constexpr char kHugePages[] = "glibc.malloc.hugetlb=1";

// Returns whether the variable has the place of a rank among the others: RANK, WORLD_SIZE, MASTER_ADDR and so on.
bool IsRankVariable(absl::string_view name);
// Returns whether scalelab sets the variable for every rank, so that `env` of a study must not.
bool IsReservedVariable(absl::string_view name);

}  // namespace scalelab
