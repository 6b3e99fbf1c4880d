// Interprets study specifications: pure checks and expansion. The client runs them before it sends anything;
// the coordinator runs them again, because it does not trust clients.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/status.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/cell_list.h"
#include "study/shapes.h"

namespace scalelab {

// Maximum number of runs of a study. A larger study is refused with its number of runs and what to reduce.
inline constexpr int64_t kMaxRunsPerStudy = 100'000;

// One run in the order of execution.
struct PlannedRun {
  int cell;    // index into cells
  int repeat;  // from 0; also the index of its block
};

struct ExpandedStudy {
  scalelab::v1::StudySpec spec;  // with all defaults filled in
  CellList cells;                // in file order, then the baselines
  int baselines = 0;             // number of cells at the end, from "measure: {communication: true}"
  // Cells that "exclude" and "on_unusable" leave out; curves show them as excluded. Shares the
  // values of `cells`.
  CellList excluded;
  std::vector<std::string> unusable;  // why "on_unusable: exclude" removed cells: distinct sentences
  // In order of execution; for RANDOMIZED, each repeat is a shuffled block. With two cells, each second block
  // has the reverse order of the block before it.
  std::vector<PlannedRun> runs;
  AllocationShape shape;  // for the study's largest cell
  GroupShapes group;      // with AllocationMode GROUP
};

// Returns why a cell with this specification cannot run on this machine or cluster; nothing if it can.
using CellCheck = std::function<std::optional<FieldViolation>(const scalelab::v1::RunSpec& spec)>;

// Checks everything that can be checked without a scheduler, applies `runs_here` to each cell, and expands
// the grid. Returns INVALID_ARGUMENT with every violation (field paths as in the YAML file:
// "matrix.engine[1]", "fixed.model", "scaling.global_batch", "zip[0].ranks", "exclude[0].engine",
// "retry.on[0]"). Returns RESOURCE_EXHAUSTED with reason STUDY_TOO_LARGE for more than kMaxRunsPerStudy runs,
// or for values of axes that are too long for the number of cells, without expanding the grid; CANCELLED soon
// after `stopped` returns true. Deterministic: the same specification gives the same result everywhere.
absl::StatusOr<ExpandedStudy> ExpandStudy(const scalelab::v1::StudySpec& spec,
                                          const CellCheck& runs_here = {},
                                          const std::function<bool()>& stopped = {});

// Returns `spec` with all defaults filled in.
scalelab::v1::StudySpec WithDefaults(scalelab::v1::StudySpec spec);

}  // namespace scalelab
