// Which all-reduce averages gradients.
#pragma once

#include "worker/trainer/comm/hierarchical_all_reduce.h"
#include "worker/trainer/strategies/horovod/options.h"

namespace scalelab::trainer::horovod {

class GradientAverager {
 public:
  // Collective if `options` ask for kHierarchical: ranks then tell each other which node they are on. Where
  // nodes hold unequal numbers of ranks it uses kLibrary instead, and rank 0 says so.
  GradientAverager(Communicator& communicator, const Options& options, Counters& counters);

  // Replaces a flat tensor by its average over all ranks, the same bits on all of them; collective.
  void Average(const at::Tensor& flat);

 private:
  Communicator& communicator_;
  Counters& counters_;
  AllReduce all_reduce_;
  Ring everybody_;
  NodeLayout layout_;
};

}  // namespace scalelab::trainer::horovod
