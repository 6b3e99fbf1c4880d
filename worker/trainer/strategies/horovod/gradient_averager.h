// Averages gradients with the all-reduce that the options select.
#pragma once

#include "worker/trainer/comm/hierarchical_all_reduce.h"
#include "worker/trainer/strategies/horovod/options.h"

namespace scalelab::trainer::horovod {

class GradientAverager {
 public:
  // Collective if `options` select kHierarchical, because ranks then exchange the names of their nodes. If
  // the nodes have different numbers of ranks, uses kLibrary instead, and rank 0 reports this.
  GradientAverager(Communicator& communicator, const Options& options, Counters& counters);

  // Replaces a flat tensor by its average over all ranks; the result is the same on all ranks, bit
  // for bit. Collective.
  void Average(const at::Tensor& flat);

 private:
  Communicator& communicator_;
  Counters& counters_;
  AllReduce all_reduce_;
  Ring all_ranks_;
  NodeLayout layout_;
};

}  // namespace scalelab::trainer::horovod
