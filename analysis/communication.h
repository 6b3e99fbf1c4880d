// Computes the cost of communication per step from runs that differ only in how they synchronise. The
// function is pure.
//
// In a block (repeat), the steps of a cell, of native/none and of native/serial share the effects of the
// block. Therefore all results are differences within blocks:
//   exposed = cell - none,  total = serial - none,  hidden = 1 - exposed / total.
// Intervals: exposed and total are means with Student's t intervals, like every mean of a curve. hidden is a
// ratio of means over the blocks with all three runs; its interval is BlockBootstrap's, which includes the
// noise of all three.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "analysis/bootstrap.h"
#include "db/records.h"
#include "scalelab/v1/result.pb.h"
#include "study/cell_list.h"

namespace scalelab::analysis {

// The role of a cell in the measurement of communication.
struct Comparison {
  bool baseline = false;  // added as a reference for other cells; not a point of a curve
  bool measured = false;  // compared with the two cells below
  std::optional<size_t> unsynchronised, serial;  // indices of cells, if any
};

// Returns one Comparison for each cell. `parameters[i]` belongs to `cells[i]`.
std::vector<Comparison> FindComparisons(const std::vector<db::CellRow>& cells, const CellList& parameters);

// Seconds per step of the runs of one cell, or the reason why there are none.
struct Steps {
  Sample seconds;
  std::string missing;  // "every run of native/none failed"
};

// Returns the steps of the rows of one cell that ran on hardware and software with this fingerprint. `name`
// is the name of the cell in messages.
Steps StepsOf(int global_batch, absl::string_view name, const std::vector<const db::CurveRow*>& rows,
              const std::string& fingerprint, const std::vector<int>& block_of_repeat);

// Computes the cost of a cell. Without native/none, sets only `missing` of the result.
scalelab::v1::CommunicationCost CompareSteps(const Steps& cell, const Steps& unsynchronised,
                                             const Steps& serial, const BlockBootstrap& bootstrap);

}  // namespace scalelab::analysis
