#include "study/shapes.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "study/cell_checks.h"

namespace scalelab {
namespace {

// Time for which an allocation holds its nodes before its first run and after its last run: prolog, start of
// the workers, epilog.
constexpr double kIdleSeconds = 120;
// Assumed size of a data set if the specification does not contain it. Only the ratio of the
// cells' times matters.
constexpr double kUsualSamples = 50'000;

}  // namespace

double SamplesOfRank(const v1::RunSpec& spec) {
  const double ranks = std::max(1, spec.ranks());
  if (const int64_t steps = KnownSteps(spec); steps > 0)
    return static_cast<double>(steps) * spec.global_batch() / ranks;
  return kUsualSamples * std::max(1, spec.epochs()) / ranks;
}

void ShapeOfCells::Add(const CellList::Needs& cell, double samples) {
  Need& need = by_ranks_[std::max(1, cell.ranks)];
  need.cpus_per_rank = std::max(need.cpus_per_rank, cell.cpus_per_rank);
  need.gpus_per_rank = std::max(need.gpus_per_rank, cell.gpus_per_rank);
  need.samples += samples;
}

AllocationShape ShapeOfCells::Get(const v1::Resources& resources) const {
  const int ranks = by_ranks_.empty() ? 1 : by_ranks_.rbegin()->first;
  AllocationShape shape;
  const int on_node = resources.ranks_per_node();
  shape.ranks_per_node = on_node > 0 ? std::min(on_node, ranks) : ranks;
  shape.nodes = NodesFor(ranks, shape);
  for (const auto& [of_ranks, need] : by_ranks_) {
    shape.cpus_per_rank = std::max(shape.cpus_per_rank, need.cpus_per_rank);
    shape.gpus_per_rank = std::max(shape.gpus_per_rank, need.gpus_per_rank);
  }
  return shape;
}

GroupShapes ShapeOfCells::GetGroup(const v1::StudySpec& spec) const {
  GroupShapes group;
  const AllocationShape largest = Get(spec.resources());
  struct Own {
    ShapeOfCells cells;
    double samples = 0;
  };
  std::map<int, Own, std::greater<>> by_nodes;
  double samples = 0;
  for (const auto& [ranks, need] : by_ranks_) {
    Own& own = by_nodes[NodesFor(ranks, largest)];
    own.cells.by_ranks_.emplace(ranks, need);
    own.samples += need.samples;
    samples += need.samples;
  }
  const auto time = static_cast<double>(spec.resources().time_seconds());
  std::vector<AllocationShape> shapes;
  for (const auto& [nodes, own] : by_nodes) {
    shapes.push_back(own.cells.Get(spec.resources()));
    const double seconds = (samples > 0 ? time * own.samples / samples : 0) + kIdleSeconds;
    group.own_node_hours += nodes * seconds / 3600;
  }
  group.sizes = static_cast<int>(shapes.size());
  group.largest_node_hours = largest.nodes * (time + kIdleSeconds) / 3600;
  // With fewer allocations at the same time, one size would run after another, hours apart. The cells of a block would then
  // differ by the time and by the other jobs of the cluster, which a block has to exclude.
  const bool own = group.sizes > 1 && spec.allocation() != v1::StudySpec::PER_RUN &&
                   ConcurrentAllocations(spec) >= group.sizes &&
                   group.own_node_hours < group.largest_node_hours;
  group.shapes = own ? std::move(shapes) : std::vector{largest};
  return group;
}

AllocationShape ShapeOf(const CellList::Needs& cell, const v1::Resources& resources) {
  ShapeOfCells shape;
  shape.Add(cell);
  return shape.Get(resources);
}

int NodesFor(int ranks, const AllocationShape& shape) { return (ranks - 1) / shape.ranks_per_node + 1; }

int ShapeWithNodes(const std::vector<AllocationShape>& shapes, int nodes) {
  int index = static_cast<int>(shapes.size()) - 1;
  while (index > 0 && shapes[index].nodes < nodes) --index;
  return index;
}

int ConcurrentAllocations(const v1::StudySpec& spec) {
  const int limit = spec.limits().concurrent_allocations();
  if (limit > 0) return limit;
  return spec.allocation() == v1::StudySpec::PER_RUN ? std::numeric_limits<int>::max() : 1;
}

}  // namespace scalelab
