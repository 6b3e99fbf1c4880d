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

namespace scalelab {

// Maximum number of runs of a study. A larger study is refused with its number of runs and what to reduce.
inline constexpr int64_t kMaxRunsPerStudy = 100'000;

// One point of the grid.
struct Cell {
  google::protobuf::Struct key;  // values of the axes only, including ranks if it is an axis
  scalelab::v1::RunSpec spec;    // complete; the seed is that of repeat 0
};

// One run in the order of execution.
struct PlannedRun {
  int cell;    // index into cells
  int repeat;  // from 0; also the index of its block
};

// Nodes that one group of runs needs simultaneously.
struct AllocationShape {
  int nodes = 1;
  int ranks_per_node = 1;  // number of slots on each node
  int cpus_per_rank = 1;
  int gpus_per_rank = 0;
};

struct ExpandedStudy {
  scalelab::v1::StudySpec spec;       // with all defaults filled in
  std::vector<Cell> cells;            // in file order, then the baselines
  int baselines = 0;                  // number of cells at the end, from "measure: {communication: true}"
  std::vector<Cell> excluded;         // by "exclude" and "on_unusable"; curves show them as excluded
  std::vector<std::string> unusable;  // why "on_unusable: exclude" removed cells: distinct sentences
  std::vector<PlannedRun> runs;  // in order of execution; for RANDOMIZED, each repeat is a shuffled block
  AllocationShape shape;         // for the study's largest cell
};

// Returns why a cell cannot run on this machine or cluster; nothing if it can.
using CellCheck = std::function<std::optional<FieldViolation>(const Cell& cell)>;

// Checks everything that can be checked without a scheduler, applies `runs_here` to each cell, and expands
// the grid. Returns INVALID_ARGUMENT with every violation (field paths as in the YAML file:
// "matrix.engine[1]", "fixed.model", "scaling.global_batch", "zip[0].ranks", "exclude[0].engine",
// "retry.on[0]"). Returns RESOURCE_EXHAUSTED with reason STUDY_TOO_LARGE for more than kMaxRunsPerStudy runs,
// without expanding the grid; CANCELLED soon after `stopped` returns true. Deterministic: the same specification
// gives the same result everywhere.
absl::StatusOr<ExpandedStudy> ExpandStudy(const scalelab::v1::StudySpec& spec,
                                          const CellCheck& runs_here = {},
                                          const std::function<bool()>& stopped = {});

// Returns `spec` with all defaults filled in.
scalelab::v1::StudySpec WithDefaults(scalelab::v1::StudySpec spec);

// Computes the shape of an allocation that can serve each of the given cells.
class ShapeOfCells {
 public:
  void Add(const scalelab::v1::RunSpec& spec);
  AllocationShape Get(const scalelab::v1::Resources& resources) const;

 private:
  int ranks_ = 1, cpus_per_rank_ = 1, gpus_per_rank_ = 0;
};

// Returns the shape of a separate allocation for one cell (AllocationMode PER_RUN).
AllocationShape ShapeOf(const scalelab::v1::RunSpec& spec, const scalelab::v1::Resources& resources);

}  // namespace scalelab
