#include "worker/trainer/strategies/horovod/gradient_averager.h"

#include <cstdio>
#include <numeric>

namespace scalelab::trainer::horovod {
namespace {

std::string RanksByNode(const NodeLayout& layout) {
  std::string numbers;
  for (const Ring& node : layout.nodes) {
    numbers += (numbers.empty() ? "" : ", ") + std::to_string(node.size());
  }
  return numbers;
}

}  // namespace

GradientAverager::GradientAverager(Communicator& communicator, const Options& options, Counters& counters)
    : communicator_(communicator),
      counters_(counters),
      all_reduce_(options.all_reduce),
      all_ranks_(communicator.size()) {
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  if (all_reduce_ != AllReduce::kHierarchical) return;
  layout_ = NodeLayout::Of(GatherNodes(communicator, options.node.empty() ? NodeName() : options.node));
  if (layout_.Equal()) return;
  all_reduce_ = AllReduce::kLibrary;
  if (communicator.rank() != 0) return;
  const std::string warning =
      "all_reduce \"hierarchical\" needs the same number of ranks on each node, but there are " +
      RanksByNode(layout_) +
      ": gradients are summed as the communicator does it; set ranks_per_node so that "
      "it divides ranks";
  if (options.warn) {
    options.warn(warning);
  } else {
    std::fprintf(stderr, "native/horovod: %s\n", warning.c_str());
  }
}

void GradientAverager::Average(const at::Tensor& flat) {
  switch (all_reduce_) {
    case AllReduce::kLibrary:
      return communicator_.AllReduce(flat, ReduceOp::kAverage);
    case AllReduce::kRing:
      ++counters_.ring_all_reduces;
      return RingAllReduce(communicator_, flat, ReduceOp::kAverage, all_ranks_);
    case AllReduce::kHierarchical:
      ++counters_.hierarchical_all_reduces;
      return HierarchicalAllReduce(communicator_, flat, ReduceOp::kAverage, layout_);
  }
}

}  // namespace scalelab::trainer::horovod
