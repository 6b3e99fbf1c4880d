// Data parallelism within one process, like torch.nn.DataParallel: there is a replica of the model
// on each device.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "worker/trainer/precision.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

struct DataParallelOptions {
  std::vector<at::Device> devices;  // devices of the replicas; the model is on the first one
  int cpu_threads = 1;              // total number of threads of all replicas
  Precision precision = Precision::kFp32;
};

// Replica 0 is the model itself. Forward copies its parameters and buffers to the other replicas, and divides
// the micro-batch among the replicas. Each replica runs in its own thread. The outputs are gathered on the
// first device, where the loss is computed. Backward also runs in all threads. Then the gradients are added
// up on replica 0 in the order of the replicas, and the optimizer updates replica 0. If a micro-batch has few
// samples, some replicas may be idle.
//
// Batch normalisation uses the statistics of each replica's own samples. Only the statistics of replica 0
// enter the running statistics. On a CPU all replicas share the memory of the parameters. Each replica draws
// random numbers of its own for dropout, and State contains the state of their generators.
class DataParallelStrategy : public Strategy {
 public:
  // `replicas` are further models of the same kind, one for each device but the first; their parameters are
  // overwritten.
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
  ModelMemory Memory(const ModelMemory& found) const override;
  ModelMemory MemoryByFormula(double parameters) const override;
  NamedTensors State() override;
  // A replica without a state in the checkpoint gets a new generator. It has none if an earlier version wrote
  // the checkpoint, or if the checkpoint was written with fewer replicas.
  void LoadState(const std::vector<NamedTensors>& of_ranks) override;

 private:
  class Threads;

  // Makes generators_ if they do not exist. Called before their first use and not earlier, because their
  // seeds follow that of replica 0, which the training loop sets after LoadState.
  void SeedReplicas();
  // Copies the parameters and buffers of replica 0 to the other replicas.
  void Replicate();
  // Runs backward on the replicas, from the gradients of their outputs.
  void Backward();
  void AddGradients();

  const DataParallelOptions options_;
  std::vector<Model*> models_;                       // by replica
  std::vector<std::shared_ptr<Model>> replicas_;     // all replicas except the first
  std::vector<std::vector<at::Tensor>> parameters_;  // by replica
  std::vector<TrainingLogits> outputs_;              // last outputs of the replicas that have samples
  TrainingLogits gathered_;                          // leaves of the autograd graph of the loss
  std::vector<at::Generator> generators_;            // of all replicas except the first; see SeedReplicas
  NamedTensors saved_generators_;                    // their states in the checkpoint, until SeedReplicas
  std::unique_ptr<Threads> threads_;                 // the last member, because it uses all others
};

}  // namespace scalelab::trainer
