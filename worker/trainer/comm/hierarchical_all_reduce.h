// All-reduce in three steps, for ranks that share nodes: within each node, between nodes, within each node.
#pragma once

#include <string>
#include <vector>

#include "worker/trainer/comm/ring_all_reduce.h"

namespace scalelab::trainer {

// The ranks of each node in their order; nodes in the order of their first ranks.
struct NodeLayout {
  std::vector<Ring> nodes;

  // `node_of_rank`: any names, equal where ranks share a node.
  static NodeLayout Of(const std::vector<std::string>& node_of_rank);
  // Whether all nodes hold as many ranks.
  bool Equal() const;
};

// The node that this process runs on: the host's name and the number that Slurm gives it, because nodes that
// are containers may share a name.
std::string NodeName();
// That of every rank, `mine` being this rank's; collective.
std::vector<std::string> GatherNodes(Communicator& communicator, const std::string& mine);

// Replaces `flat` by its sum or average over all ranks of the communicator, the same bits on all of them; the
// tensor is as for RingAllReduce. All ranks call, with the same layout, in which nodes are Equal().
//
// As Horovod does it with HOROVOD_HIERARCHICAL_ALLREDUCE (horovod/common/ops, NCCLHierarchicalAllreduce): the
// ranks of a node reduce and scatter; those in the same place of their nodes all-reduce their block; the
// ranks of a node gather. Each step goes around a ring. Between nodes travels what one flat ring would send
// there, but from all ranks of a node at once and in as few hops as there are nodes.
void HierarchicalAllReduce(Communicator& communicator, const at::Tensor& flat, ReduceOp op,
                           const NodeLayout& layout);

}  // namespace scalelab::trainer
