// Whether a cell's engine takes what the cell asks of it. Internal to this room.
#pragma once

#include <string>
#include <vector>

#include "catalog/engines.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab {

// A study key and what is wrong with its value.
struct EngineMisfit {
  absl::string_view key;  // or "resources.ranks_per_node"
  std::string sentence;   // with the nearest choice that it takes
};

// Of engines behind an adapter: device, backend, precision, model, data set, batch normalisation, ranks on a
// node. Empty for native/* and custom, and where the cell can run.
std::vector<EngineMisfit> EngineMisfits(const scalelab::v1::RunSpec& run,
                                        const scalelab::v1::Resources& resources);

}  // namespace scalelab
