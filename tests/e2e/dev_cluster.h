// A real Slurm cluster for a test, made by deploy/dev-cluster: own nodes, own network; nothing of it stays.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/e2e/process.h"

namespace scalelab::e2e {

class DevCluster {
 public:
  // `options` are those of `deploy/dev-cluster up`, for example {"-n", "4", "--gpus", "2"}.
  explicit DevCluster(std::vector<std::string> options = {});
  ~DevCluster();  // Down(); shows the ends of Slurm's logs when the test has failed
  DevCluster(const DevCluster&) = delete;

  // Why there can be no cluster here (no root, no Slurm), in a sentence; empty when there can. For
  // GTEST_SKIP. `options` are those of `deploy/dev-cluster check`.
  static std::string Unavailable(std::vector<std::string> options = {});

  // Returns when all nodes are idle; what went wrong otherwise, and then nothing of it is there.
  std::string Start();
  // Ends everything; what went wrong, or empty. The names below stay known.
  std::string Down();
  // Processes, links, control groups, mounts and files of a cluster that are still there, a line each.
  std::string Leftovers() const;

  // A program outside of the nodes, as on a login node, that speaks with this cluster: Run({"sbatch", ...}).
  Output Run(const std::vector<std::string>& argv, double seconds = 120) const;
  // A program in all namespaces of node i.
  Output RunOn(int i, const std::vector<std::string>& argv, double seconds = 120) const;
  // A command of deploy/dev-cluster for this cluster: Control({"node", "2", "link-down"}).
  Output Control(std::vector<std::string> words, double seconds = 120) const;

  // `sbatch --parsable words...`: the number of the job; a failed test when it is not accepted.
  std::string Submit(std::vector<std::string> words) const;
  // RUNNING, OUT_OF_MEMORY, ...; empty when it is not known or the controller does not answer.
  std::string JobState(const std::string& job) const;
  // Waits until it is in that state.
  bool WaitForState(const std::string& job, const std::string& state, double seconds = 60) const;

  // Name of node i, counted from 1; also its hostname.
  std::string Node(int i) const;
  // What programs need in their environment to speak with this cluster.
  const std::map<std::string, std::string>& Env() const { return env_; }
  std::string name() const { return env_.at("SCALELAB_CLUSTER_NAME"); }
  std::string address() const { return env_.at("SCALELAB_CLUSTER_ADDRESS"); }  // of the login node
  const std::string& dir() const { return dir_; }

 private:
  std::string dir_;
  std::vector<std::string> options_;
  std::map<std::string, std::string> env_;
  std::string bridge_;  // its link address, which no other cluster has
};

}  // namespace scalelab::e2e
