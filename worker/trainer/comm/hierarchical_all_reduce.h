// All-reduce in three steps for ranks that share nodes: within nodes, between nodes, within nodes.
#pragma once

#include <string>
#include <vector>

#include "worker/trainer/comm/ring_all_reduce.h"

namespace scalelab::trainer {

// The ranks of each node in rank order, with nodes in the order of their first ranks.
struct NodeLayout {
  std::vector<Ring> nodes;

  // Returns the layout. `node_of_rank` has a name for each rank; the names are equal for ranks on
  // the same node.
  static NodeLayout Of(const std::vector<std::string>& node_of_rank);
  // Returns whether all nodes have the same number of ranks.
  bool Equal() const;
};

// Returns a name for the node of this process: the value of SLURM_NODEID and the host name. The host name
// alone is not sufficient, because nodes that are containers may share a host name.
std::string NodeName();
// Returns the node name of every rank; `mine` is the name of this rank's node. Collective.
std::vector<std::string> GatherNodes(Communicator& communicator, const std::string& mine);
// Returns the ranks that pass the same `group`, in order. Collective.
Ring RanksOfGroup(Communicator& communicator, int group);

// Replaces `flat` by its sum or average over all ranks of the communicator. The result is equal on all ranks,
// bit for bit. Accepts the same tensors as RingAllReduce. All ranks must pass the same layout, for which
// Equal() must be true.
//
// Uses the algorithm of HOROVOD_HIERARCHICAL_ALLREDUCE (NCCLHierarchicalAllreduce in horovod/common/ops):
// the ranks of a node reduce-scatter; the ranks with the same index in their nodes all-reduce their block;
// the ranks of a node all-gather. Each step uses a ring. Nodes exchange the same number of bytes as in one
// flat ring, but all ranks of a node send at the same time, and the number of hops between nodes is the
// number of nodes.
void HierarchicalAllReduce(Communicator& communicator, const at::Tensor& flat, ReduceOp op,
                           const NodeLayout& layout);

}  // namespace scalelab::trainer
