// The simple noise scale of gradients, which estimates the critical batch (McCandlish et al. 2018, arXiv
// 1812.06162, appendix A.1), and the efficiency of a batch that follows from it.
#pragma once

#include <vector>

#include "analysis/distributions.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// Squared norms of gradients, means over the steps of a repeat.
struct GradientNorms {
  double of_rank = 0;  // squared norm of a rank's gradient, mean over ranks
  double of_mean = 0;  // squared norm of the mean of the ranks' gradients
};

// Estimates the noise scale of a point with `ranks` ranks and `global_batch` samples per step. `throughput` may be null.
scalelab::v1::GradientNoise MakeGradientNoise(int ranks, double global_batch,
                                              const std::vector<GradientNorms>& norms,
                                              const scalelab::v1::Estimate* throughput,
                                              const CriticalValues& critical);

}  // namespace scalelab::analysis
