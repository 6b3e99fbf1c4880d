// Checks whether the engines of a study train alike. The functions are pure.
//
// Engines with the same model, data, precision, batch, ranks, learning rates and seed compute the same steps
// from the same weights, so their losses must agree. If they do not, the engine does different work, its
// speed is not comparable, and the curve shows a note.
//
// The loss of each of the first steps (mean over ranks) and the mean loss of each epoch are compared with
// those of the reference. The reference is native/ddp; if a study lacks it, native/horovod or native/serial;
// if it lacks these too, the median of the engines at each step or epoch.
//
// Allowed relative differences:
//
//   what                                 fp32                                  tf32, amp-* (8 to 11 bits)
//   first step (same weights, samples)   0.03%                                 0.3%
//   later steps                          1%, or 100 times the largest          3%, otherwise the same
//                                        earlier difference, at most 20%
//   steps of models with dropout         20%: frameworks draw other units      20%
//   an epoch                             15%                                   20%
//
// Rounding errors start at 1e-7 and grow from step to step, a hundredfold at learning rates at which the loss
// first rises, until the losses differ like those of two seeds. An engine with another recipe differs from
// the first step on. docs/users/reading-a-curve.md has the measurements. By the end of an epoch, rounding
// errors have the same effect as another seed, so the band is wide, and a slow drift of a few percent is not
// detected. For a loss below 0.2 the band of a loss of 0.2 is used, because small absolute differences are
// large relative to such a loss.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "db/records.h"
#include "scalelab/v1/result.pb.h"
#include "study/cell_list.h"

namespace scalelab::analysis {

// Number of first steps to compare.
inline constexpr int kComparedSteps = 10;
// Number of first epochs to compare.
inline constexpr int kComparedEpochs = 10;

// A run whose losses are compared.
struct ComparedRun {
  size_t cell = 0;  // index into the cells
  int64_t attempt_id = 0;
  int group = 0;  // runs of one group are compared with each other
  // Number of samples over which batch normalisation computes statistics. The losses depend on it. 0: it does
  // not depend on the engine.
  double normalised_samples = 0;
};

// Returns the runs to compare: for each group of cells with the same recipe and at least two engines, the
// runs of one repeat, so that they have the same seed. Empty and cheap for a study of one engine. Excludes
// native/none, because its ranks differ by design, and the cells of DifferencesByDesign. `parameters[i]` belongs to `cells[i]`.
std::vector<ComparedRun> RunsToCompare(const std::vector<db::CellRow>& cells, const CellList& parameters,
                                       const std::vector<db::CurveRow>& rows);

// Returns the cells whose engine does not compute the steps of one rank, with the reason as the message: it averages
// parameters, or compresses gradients. By cell id.
std::map<int64_t, scalelab::v1::TrainingDifference> DifferencesByDesign(const std::vector<db::CellRow>& cells,
                                                                        const CellList& parameters);

// Losses of a run, by step and by epoch from 0. Empty if the engine does not report them.
struct Losses {
  std::vector<double> steps, epochs;
};

// Returns the first difference of each run from its reference, by cell id; steps come before epochs. Runs
// that agree have no entry. `losses[i]` belongs to `runs[i]`.
std::map<int64_t, scalelab::v1::TrainingDifference> CompareTraining(const std::vector<db::CellRow>& cells,
                                                                    const std::vector<ComparedRun>& runs,
                                                                    const std::vector<Losses>& losses);

// Returns the mean over ranks for each of the first steps, up to the first one that a rank did not report.
// `ranks` contains the steps and values of one metric for each rank.
std::vector<double> MeanOverRanks(
    const std::vector<std::pair<std::vector<int64_t>, std::vector<double>>>& ranks);

}  // namespace scalelab::analysis
