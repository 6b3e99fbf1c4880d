// Compares nodes by the throughputs of runs that used one node each.
//
// The ranks of such a run cannot show that its node is slow. But in randomised blocks, runs of different
// cells and blocks use the same node, so its effect can be estimated by least squares:
//   log(seconds per sample) = cell + block + drift * time + node + noise
// The cells, the blocks and the drift are those of block_model.h. They are fitted to the logarithms, and to the
// indicator of each node, which is 1 for runs on the node and 0 for others. A regression of the residuals of the
// logarithms on those of the indicators gives the effects of the nodes (Frisch and Waugh, Econometrica 1, 1933).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// A run that used one node.
struct NodeRun {
  size_t cell = 0;  // any number that identifies the cell
  int block = 0;
  double started = 0;  // in seconds; 0: not known
  double throughput = 0;
  std::string node;
};

// Names the slowest node. `runs` are runs with one fingerprint, ordered by cell and block. Leaves out nodes
// that executed only one run, because the effect of such a node would only repeat the noise of this run, and
// nodes that are not connected to the others by cells that both executed.
// Returns nothing if all runs used the same node.
std::optional<scalelab::v1::NodeComparison> CompareNodes(std::vector<NodeRun> runs, double confidence);

}  // namespace scalelab::analysis
