// Checks whether a cell's engine supports the cell's settings. Internal to this library.
#pragma once

#include <string>
#include <vector>

#include "catalog/engines.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab {

// An unsupported setting: a key and what is wrong with its value.
struct EngineMisfit {
  absl::string_view key;  // of the grid, such as "env.OMP_NUM_THREADS", or "resources.ranks_per_node"
  std::string sentence;   // includes the nearest supported choice
};

// Checks device, backend, precision, model, batch normalisation, ranks per node, settings that only some
// engines have, and variables that have no effect in the engine. For custom, checks only variables. Returns
// nothing for a cell that can run.
std::vector<EngineMisfit> EngineMisfits(const scalelab::v1::RunSpec& run,
                                        const scalelab::v1::Resources& resources);

// Returns whether `key` is a variable with a number of threads ("env.OMP_NUM_THREADS") that the engine uses.
bool UsesThreadVariable(const Engine& engine, absl::string_view key);

}  // namespace scalelab
