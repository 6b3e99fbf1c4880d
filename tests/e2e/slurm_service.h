// A scalelab service on the login node of a development cluster.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/dev_cluster.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {

class SlurmService : public Service {
 public:
  // `cluster` has been started and outlives it.
  explicit SlurmService(const DevCluster& cluster, std::vector<std::string> flags = {});

  // The jobs of this cluster that have ended, a line each, as Slurm's own record has them: "JobId=7 ...
  // Name=<token> JobState=COMPLETED ...".
  std::vector<std::string> JobRecords() const;
  // Ids of the jobs that have not ended.
  std::vector<std::string> LiveJobs() const;
  // Processes of jobs on node i: everything there but the node's own daemons.
  std::vector<std::string> ProcessesOn(int i) const;
  // The first process on node i that runs this program, its number there; 0: none.
  pid_t FindOn(int i, const std::string& program) const;
  // "" when no job is left in the queue and no process of one on any of the nodes; waits for it.
  std::string LeftBehind(int nodes, double seconds = 30) const;

 private:
  const DevCluster& cluster_;
};

// A study of resnet20 on the images that ship with the project: `axes` is the matrix, `more` further lines.
std::string ClusterStudy(const std::string& axes, int repeats, int steps, const std::string& more = "");

}  // namespace scalelab::e2e
