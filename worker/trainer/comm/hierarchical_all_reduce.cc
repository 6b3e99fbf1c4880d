#include "worker/trainer/comm/hierarchical_all_reduce.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "worker/trainer/comm/peers/network.h"
#include "worker/trainer/comm/tensors.h"

namespace scalelab::trainer {

NodeLayout NodeLayout::Of(const std::vector<std::string>& node_of_rank) {
  NodeLayout layout;
  std::map<std::string, size_t> numbers;
  for (size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const auto [node, fresh] = numbers.try_emplace(node_of_rank[rank], layout.nodes.size());
    if (fresh) layout.nodes.emplace_back();
    layout.nodes[node->second].push_back(static_cast<int>(rank));
  }
  return layout;
}

bool NodeLayout::Equal() const {
  return std::ranges::all_of(nodes, [&](const Ring& node) { return node.size() == nodes[0].size(); });
}

std::string NodeName() {
  const char* number = std::getenv("SLURM_NODEID");
  return (number == nullptr ? std::string() : std::string(number) + " ") + HostName();
}

std::vector<std::string> GatherNodes(Communicator& communicator, const std::string& mine) {
  constexpr size_t kLength = 256;  // host names have at most 64 characters
  std::string line = mine;
  line.resize(kLength);
  return communicator.AllGather(line);
}

Ring RanksOfGroup(Communicator& communicator, int group) {
  const auto all =
      NodeLayout::Of(communicator.AllGather({reinterpret_cast<const char*>(&group), sizeof group}));
  return *std::ranges::find_if(all.nodes, [&](const Ring& ranks) {
    return std::ranges::find(ranks, communicator.rank()) != ranks.end();
  });
}

void HierarchicalAllReduce(Communicator& communicator, const at::Tensor& flat, ReduceOp op,
                           const NodeLayout& layout) {
  CheckReduction(flat, op);
  TORCH_CHECK(op == ReduceOp::kSum || op == ReduceOp::kAverage, "this all-reduce adds or averages");
  TORCH_CHECK(layout.Equal(), "all nodes must hold the same number of ranks");
  const int rank = communicator.rank();
  const auto node = std::ranges::find_if(
      layout.nodes, [&](const Ring& ranks) { return std::ranges::find(ranks, rank) != ranks.end(); });
  TORCH_CHECK(node != layout.nodes.end(), "rank ", rank, " is on no node of the layout");
  const size_t place = PlaceIn(*node, rank);
  Ring across;
  for (const Ring& ranks : layout.nodes) across.push_back(ranks[place]);

  RingReduceScatter(communicator, flat, *node);
  const at::Tensor block = RingBlock(flat, place, node->size());
  RingAllReduce(communicator, block, ReduceOp::kSum, across);
  if (op == ReduceOp::kAverage) DivideInPlace(block, communicator.size());
  RingAllGather(communicator, flat, *node);
}

}  // namespace scalelab::trainer
