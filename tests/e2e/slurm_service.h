// A scalelab service on the login node of a development cluster.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/dev_cluster.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {

class SlurmService : public Service {
 public:
  // `cluster` must be running and must outlive this object.
  explicit SlurmService(const DevCluster& cluster, std::vector<std::string> flags = {});

  // Returns the ended jobs of this cluster, one per line, from Slurm's record: "JobId=7 ...
  // Name=<token> JobState=COMPLETED ...".
  std::vector<std::string> JobRecords() const;
  // Returns the jobs that have not ended, one per line: "JobId=7 UserId=<user>(<uid>) Name=<token> ".
  std::vector<std::string> LiveJobRecords() const;
  // Returns the ids of the jobs that have not ended.
  std::vector<std::string> LiveJobs() const;
  // Returns the processes of jobs on node i: all processes except the node's own daemons.
  std::vector<std::string> ProcessesOn(int i) const;
  // Returns the process id, inside node i, of the first process that runs this program; 0 if there is none.
  pid_t FindOn(int i, const std::string& program) const;
  // Waits until no job is in the queue and no job process is on any node, at most `seconds`. Returns what is
  // left, or "" if nothing is left.
  std::string LeftBehind(int nodes, double seconds = 30) const;

 private:
  const DevCluster& cluster_;
};

// Returns a study of `model` on the images that ship with the project. `axes` is the matrix, `more` has further lines.
std::string ClusterStudy(const std::string& axes, int repeats, int steps, const std::string& more = "",
                         const std::string& model = "resnet8");

}  // namespace scalelab::e2e
