// The common part of the tests that kill parts of a Slurm cluster and of scalelab during studies. After each
// fault the studies must complete, no acknowledged point may be lost or duplicated, no run may have two live
// attempts, and no jobs, processes or files may remain.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/slurm_service.h"

namespace scalelab::e2e {

// Checks continuously, on all nodes, whether two attempts of one run have live ranks simultaneously.
class OneAttemptAtATime {
 public:
  // `program` is part of the command lines of ranks.
  explicit OneAttemptAtATime(std::string runs_dir, std::string program = "scalelab-trainer");
  ~OneAttemptAtATime();
  // Returns a sentence for each violation so far.
  std::vector<std::string> Violations();

 private:
  void Look();

  const std::string runs_dir_, program_;
  std::mutex mutex_;
  std::set<std::string> violations_;  // guarded by mutex_
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Prints each fault and finally the number of faults and violations. SCALELAB_FAULT_ROUNDS is the number of rounds of each fault
// (default 1, and 2 in the long form).
class ClusterFaults : public testing::Test {
 protected:
  static constexpr int kNodes = 4;

  void SetUp() override;

  // Returns why the test cannot run on this machine; empty if it can.
  virtual std::string Unavailable() { return DevCluster::Unavailable(); }
  // Returns a service on the cluster that has not been started.
  virtual std::unique_ptr<SlurmService> MakeService();
  // Submits the studies of one fault. They run at the same time.
  virtual std::vector<std::string> SubmitStudies();
  // Submits a study of one run on one node that ends after a few seconds.
  virtual std::string SubmitShortStudy();
  // Called after each fault, before the studies have to end.
  virtual void AfterFault() {}
  // Checks all requirements for a study that has ended.
  virtual void Check(const std::string& name, const std::string& study);

  void Violation(const std::string& fault, const std::string& what);

  // Runs a command of deploy/dev-cluster that must succeed.
  void Control(std::vector<std::string> words);
  // Kills the first process of a program on node i, when there is one.
  void KillOn(int node, const std::string& program);
  // Wait like those of the service, and meanwhile resume nodes like an administrator.
  int WaitFor(const std::string& study, double seconds);
  std::string WaitUntilTraining(const std::string& study, int steps, double seconds);
  void ResumeNodesWithDuplicates();

  // Submits studies, injects the fault when all of them train, and checks all requirements afterwards.
  void Try(const std::string& name, const std::function<void()>& fault);
  // Submits short studies, kills the controller soon after it has accepted the job of each, and checks all
  // requirements afterwards. slurmctld answers sbatch before it saves the job, so a crash within the next seconds
  // may lose the job.
  void KillControllerAfterSubmissions();
  void Report(OneAttemptAtATime& watch);

  // Faults of the parts that exist in all clusters.
  void KillDaemon();
  void KillSlurmd(int node);
  void KillController();
  void SuspendDaemon(double seconds);
  void CutOff(int node, double seconds);

  int rounds_ = 1;
  int faults_ = 0;
  int violations_ = 0;
  std::vector<std::string> jobs_before_;  // records of the jobs that ran when the last fault was injected
  // A step takes as long as the gradients need on the network, on fast and on slow processors.
  DevCluster cluster_{{"-n", std::to_string(kNodes), "--rate", "10mbit"}};
  std::unique_ptr<SlurmService> service_;
};

}  // namespace scalelab::e2e
