// The environment variables that scalelab sets for a rank (docs/users/write-a-training-script.md).
#pragma once

#include "absl/strings/string_view.h"

namespace scalelab {

// Prefix of the variables with parameters of custom programs: SCALELAB_PARAM_DROPOUT contains params.dropout.
inline constexpr char kParamVariable[] = "SCALELAB_PARAM_";

// The variable that makes malloc of the C library use huge pages, and its value (glibc's manual,
// "Memory Allocation Tunables"). The C library reads the variable when a program starts, before it
// loads other libraries.
inline constexpr char kMallocTunables[] = "GLIBC_TUNABLES";
inline constexpr char kHugePages[] = "glibc.malloc.hugetlb=1";

// Returns whether the variable describes the position of a rank, such as RANK, WORLD_SIZE and MASTER_ADDR.
bool IsRankVariable(absl::string_view name);
// Returns whether scalelab sets the variable for every rank, so that `env` of a study must not.
bool IsReservedVariable(absl::string_view name);

}  // namespace scalelab
