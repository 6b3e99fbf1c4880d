// Data parallelism within one process, as torch.nn.DataParallel: replicas of the model, one for each device.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "worker/trainer/precision.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

struct DataParallelOptions {
  std::vector<at::Device> devices;  // of the replicas; the first one holds the model
  int cpu_threads = 1;              // of all replicas together
  Precision precision = Precision::kFp32;
};

// Replica 0 is the model itself. Forward copies its parameters and buffers to the other replicas, divides the micro-batch
// among them, runs each in a thread of its own, and gathers the outputs on the first device, where the loss is computed. After
// backward, again in all threads, the gradients are added up on replica 0 in the order of the replicas, and the optimizer
// updates replica 0. A micro-batch of few samples may leave replicas idle.
//
// Batch normalisation takes the statistics of each replica's own samples, and only those of replica 0 enter the running
// statistics. On a CPU all replicas share the memory of the parameters. Threads draw random numbers (dropout) in no fixed
// order.
class DataParallelStrategy : public Strategy {
 public:
  // `replicas` are further models of the same kind, one for each device but the first; their parameters are overwritten.
  DataParallelStrategy(Model& model, std::vector<std::shared_ptr<Model>> replicas,
                       const DataParallelOptions& options);
  ~DataParallelStrategy() override;

  TrainingLogits Forward(Model& model, const at::Tensor& images) override;
  void Step(StepTask& task) override;
  std::vector<at::Tensor> Trained() override { return parameters_.front(); }
  void SyncBuffers() override {}
  bool averages_gradients() const override { return false; }
  std::string WhyNotRecorded() const override {
    return "engine native/data-parallel has several threads; use native/ddp";
  }
  Stored stored() const override { return Stored::kOnce; }

 private:
  class Threads;

  // Gives the other replicas the parameters and buffers of replica 0.
  void Replicate();
  // Passes the gradients of the outputs on to the replicas.
  void Backward();
  void AddGradients();

  const DataParallelOptions options_;
  std::vector<Model*> models_;                       // by replica
  std::vector<std::shared_ptr<Model>> replicas_;     // owns all but the first
  std::vector<std::vector<at::Tensor>> parameters_;  // by replica
  std::vector<TrainingLogits> outputs_;              // of the replicas that have samples, in the last Forward
  TrainingLogits gathered_;                          // leaves of the loss
  std::unique_ptr<Threads> threads_;                 // last member: uses the others
};

}  // namespace scalelab::trainer
