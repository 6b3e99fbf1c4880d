// The environment variables that scalelab sets for a rank (docs/users/write-a-training-script.md).
#pragma once

#include <vector>

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

// A variable that only some engines set themselves, so that `env` of a study with one of them must not.
struct EngineVariable {
  absl::string_view key;                   // of a study: "env.TF_CONFIG"
  std::vector<absl::string_view> engines;  // that set it, or that ignore it because of what they set
  absl::string_view instead;               // what a study does instead: "set ranks"
  absl::string_view launcher;              // the only launcher with which they set it; empty: all
};
// Returns the table of these variables.
const std::vector<EngineVariable>& EngineVariables();

// A variable with a number of threads, such as OMP_NUM_THREADS. Engines in neither list do not read it.
struct ThreadVariable {
  absl::string_view key;                       // of a study: "env.OMP_NUM_THREADS"
  std::vector<absl::string_view> replaced_by;  // engines that use cpus_per_rank instead of its value
  std::vector<absl::string_view> used_by;      // engines that use its value
};
// Returns the table of these variables.
const std::vector<ThreadVariable>& ThreadVariables();

}  // namespace scalelab
