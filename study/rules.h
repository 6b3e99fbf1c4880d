// What a study specification means: pure checks and expansion, the same in the client (before anything is
// sent) and in the coordinator (which trusts nobody).
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

// Runs of one study at most; more is refused with the number and what to reduce.
inline constexpr int64_t kMaxRunsPerStudy = 100'000;

// One point of the grid.
struct Cell {
  google::protobuf::Struct key;  // values of the axes only, ranks included when it is an axis
  scalelab::v1::RunSpec spec;    // complete; seed is that of repeat 0
};

// One run in the order of execution.
struct PlannedRun {
  int cell;    // index into cells
  int repeat;  // from 0; also its block
};

// Nodes that one group of runs needs at the same time.
struct AllocationShape {
  int nodes = 1;
  int ranks_per_node = 1;  // slots on each node
  int cpus_per_rank = 1;
  int gpus_per_rank = 0;
};

struct ExpandedStudy {
  scalelab::v1::StudySpec spec;       // with every default filled in
  std::vector<Cell> cells;            // file order, then the baselines
  int baselines = 0;                  // cells at the end that "measure: {communication: true}" added
  std::vector<Cell> excluded;         // left out by "exclude" and "on_unusable", shown in curves as such
  std::vector<std::string> unusable;  // why "on_unusable: exclude" left out cells: different sentences
  std::vector<PlannedRun>
      runs;               // order of execution: for RANDOMIZED each repeat is a block shuffled by the seed
  AllocationShape shape;  // of the study's largest cell
};

// Why a cell cannot run here, for whoever knows the machine; nothing when it can.
using CellCheck = std::function<std::optional<FieldViolation>(const Cell& cell)>;

// Checks everything that can be checked without a scheduler, and what `runs_here` says, and expands the grid.
// INVALID_ARGUMENT with every violation (field paths as in the YAML file: "matrix.engine[1]", "fixed.model",
// "scaling.global_batch", "zip[0].ranks", "exclude[0].engine", "retry.on[0]"); RESOURCE_EXHAUSTED reason
// STUDY_TOO_LARGE past kMaxRunsPerStudy, told without expanding. Deterministic: the same spec gives the same
// result everywhere.
absl::StatusOr<ExpandedStudy> ExpandStudy(const scalelab::v1::StudySpec& spec,
                                          const CellCheck& runs_here = {});

// Shape of one cell's own allocation (AllocationMode PER_RUN).
AllocationShape ShapeOf(const scalelab::v1::RunSpec& spec, const scalelab::v1::Resources& resources);

}  // namespace scalelab
