// A real Slurm cluster for a test, created by deploy/dev-cluster with its own nodes and network. Removes
// everything at the end.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/e2e/process.h"

namespace scalelab::e2e {

class DevCluster {
 public:
  // `options` are options of `deploy/dev-cluster up`, for example {"-n", "4", "--gpus", "2"}.
  explicit DevCluster(std::vector<std::string> options = {});
  ~DevCluster();  // calls Down(); prints the ends of Slurm's logs if the test failed
  DevCluster(const DevCluster&) = delete;

  // Returns why a cluster cannot be created on this machine (no root, no Slurm) in a sentence; empty if it
  // can. For GTEST_SKIP. `options` are options of `deploy/dev-cluster check`.
  static std::string Unavailable(std::vector<std::string> options = {});

  // Starts the cluster and waits until all nodes are idle. Otherwise removes everything and
  // returns the error.
  std::string Start();
  // Stops and removes everything. Returns the error, or an empty string. The accessors below stay valid.
  std::string Down();
  // Returns processes, links, control groups, mounts and files of the cluster that still exist, one per line.
  std::string Leftovers() const;

  // Runs a program of this cluster outside of the nodes, as on a login node: Run({"sbatch", ...}).
  Output Run(const std::vector<std::string>& argv, double seconds = 120) const;
  // Runs a program in all namespaces of node i.
  Output RunOn(int i, const std::vector<std::string>& argv, double seconds = 120) const;
  // Runs a command of deploy/dev-cluster for this cluster: Control({"node", "2", "link-down"}).
  Output Control(std::vector<std::string> words, double seconds = 120) const;

  // Runs `sbatch --parsable words...` and returns the job id. The test fails if the job is not accepted.
  std::string Submit(std::vector<std::string> words) const;
  // Returns RUNNING, OUT_OF_MEMORY, ...; empty if the job is unknown or the controller does not answer.
  std::string JobState(const std::string& job) const;
  // Waits until the job is in that state.
  bool WaitForState(const std::string& job, const std::string& state, double seconds = 60) const;

  // Returns the name of node i, counted from 1. The name is also the node's hostname.
  std::string Node(int i) const;
  // Returns the environment variables that programs need to use this cluster.
  const std::map<std::string, std::string>& Env() const { return env_; }
  std::string name() const { return env_.at("SCALELAB_CLUSTER_NAME"); }
  std::string address() const { return env_.at("SCALELAB_CLUSTER_ADDRESS"); }  // address of the login node
  const std::string& dir() const { return dir_; }

 private:
  std::string dir_;
  std::vector<std::string> options_;
  std::map<std::string, std::string> env_;
  std::string bridge_;  // the link-layer address of the cluster's bridge, which is unique
};

}  // namespace scalelab::e2e
