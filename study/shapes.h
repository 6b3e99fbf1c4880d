// The shapes of a study's allocations, and their cost.
#pragma once

#include <map>
#include <vector>

#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/cell_list.h"

namespace scalelab {

// Nodes that one group of runs needs simultaneously.
struct AllocationShape {
  int nodes = 1;
  int ranks_per_node = 1;  // number of slots on each node
  int cpus_per_rank = 1;
  int gpus_per_rank = 0;
};

// The shapes of the allocations of a study with AllocationMode GROUP.
struct GroupShapes {
  // The shapes, the largest first: either one shape that serves every cell, or one for each number of nodes
  // that cells need.
  std::vector<AllocationShape> shapes;
  // Estimates of the node-hours with either kind of shapes.
  // PlanStudyResponse.node_hours_largest describes them.
  double largest_node_hours = 0, own_node_hours = 0;
  int sizes = 1;  // number of different node counts that the cells need
};

// Computes the shapes of allocations from the cells that they serve. The result depends on the order of the cells only
// by rounding: always add them in the order of their positions.
class ShapeOfCells {
 public:
  // `samples`: see SamplesOfRank.
  void Add(const CellList::Needs& cell, double samples = 0);
  // Returns the shape of an allocation that can serve each of the cells.
  AllocationShape Get(const scalelab::v1::Resources& resources) const;
  // Returns the shapes for a study whose defaults are filled in.
  GroupShapes GetGroup(const scalelab::v1::StudySpec& spec) const;

 private:
  struct Need {
    int cpus_per_rank = 1, gpus_per_rank = 0;
    double samples = 0;  // samples that each rank processes, summed over the cells
  };
  std::map<int, Need> by_ranks_;
};

// Returns the shape of a separate allocation for one cell (AllocationMode PER_RUN).
AllocationShape ShapeOf(const CellList::Needs& cell, const scalelab::v1::Resources& resources);

// Returns an estimate of the number of samples that each rank of a run processes.
double SamplesOfRank(const scalelab::v1::RunSpec& spec);

// Returns the number of nodes that `ranks` ranks need in an allocation of this shape.
int NodesFor(int ranks, const AllocationShape& shape);
// Returns the index of the smallest of the shapes that has at least `nodes` nodes. `shapes` is sorted,
// the largest first.
int ShapeWithNodes(const std::vector<AllocationShape>& shapes, int nodes);

// Returns the largest number of allocations that the study may have at the same time.
int ConcurrentAllocations(const scalelab::v1::StudySpec& spec);

}  // namespace scalelab
