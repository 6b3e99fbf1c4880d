#include "server/core/job_request.h"

namespace scalelab::server {

JobRequest RequestFor(const v1::StudySpec& spec, const AllocationShape& shape) {
  const v1::Resources& resources = spec.resources();
  JobRequest request;
  request.study = spec.study();
  request.nodes = shape.nodes;
  request.ranks_per_node = shape.ranks_per_node;
  request.cpus_per_rank = shape.cpus_per_rank;
  request.gpus_per_rank = shape.gpus_per_rank;
  request.time_limit = absl::Seconds(resources.time_seconds() > 0 ? resources.time_seconds() : 3600);
  request.partition = resources.partition();
  request.exclusive = resources.exclusive();
  request.memory_mib = resources.memory_mib();
  for (const auto& [key, value] : spec.slurm().sbatch_options()) request.options.emplace_back(key, value);
  return request;
}

}  // namespace scalelab::server
