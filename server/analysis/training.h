// Do engines train alike? Those of a study that share everything but how they are made (model, data,
// precision, batch, ranks, rates, seed) compute the same steps from the same weights, so their losses must
// agree. An engine whose losses do not is faster or slower at something else, and a curve says so. Pure.
//
// The loss of each of the first steps (mean over ranks) and the mean loss of each epoch are compared with
// those of the reference: native/ddp, else native/horovod or native/serial, else at each place the median of
// the engines. Bands:
// A step: the first, from the same weights on the same samples, 0.03%. Then 1%, or a hundred times the
// largest difference of the steps before, up to 20%. Where numbers have 8 to 11 bits (tf32, amp-*) 0.3% and
// 3%. Rounding begins with 1e-7 and grows from step to step, a hundredfold at rates at which the loss rises
// first, until losses differ as those of two seeds do; another recipe begins at once:
// docs/users/read-a-curve.md has what was measured. Models that drop out units have 20%, as each framework
// draws its own. An epoch: 15%, and 20% in tf32 and amp-*. By then rounding has grown as far as another seed
// would have brought it, so only what a mean over an epoch still shows counts. Wide by choice: a slow drift
// of a few percent is not found here. Of a loss below 0.2 the band is as wide as that of 0.2: there small
// differences are large parts and mean nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "db/records.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::server {

// First steps whose losses are compared.
inline constexpr int kComparedSteps = 10;
// Epochs that are compared.
inline constexpr int kComparedEpochs = 10;

// A run whose losses are wanted.
struct ComparedRun {
  size_t cell = 0;  // index into the cells
  int64_t attempt_id = 0;
  int group = 0;  // runs of one group are compared with each other
};

// Of each group of cells with the same recipe and at least two engines the runs of one repeat, as all of them
// must have one seed. Empty, and cheap, for a study of one engine. native/none is left out: its ranks differ
// by design.
std::vector<ComparedRun> RunsToCompare(const std::vector<db::CellRow>& cells,
                                       const std::vector<db::CurveRow>& rows);

// What is known of one of these runs: by step from 0, by epoch from 0. Empty where the engine does not tell.
struct Losses {
  std::vector<double> steps, epochs;
};

// By id of the cell: in what its run differs from the reference; nothing of those that agree. `losses[i]` is
// of `runs[i]`. The first difference counts, steps before epochs.
std::map<int64_t, scalelab::v1::TrainingDifference> CompareTraining(const std::vector<db::CellRow>& cells,
                                                                    const std::vector<ComparedRun>& runs,
                                                                    const std::vector<Losses>& losses);

// Mean over ranks by step, of the steps that every rank tells. `ranks` are series of one metric, one a rank.
std::vector<double> MeanOverRanks(
    const std::vector<std::pair<std::vector<int64_t>, std::vector<double>>>& ranks);

}  // namespace scalelab::server
