// Local SGD: each rank trains alone, and the ranks average their parameters periodically (Stich
// 2019, arXiv 1805.09767).
#pragma once

#include <memory>

#include "worker/trainer/strategies/ddp_strategy.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

struct LocalSgdOptions {
  int64_t steps = 8;  // number of steps from one average to the next
  // Number of first steps, which average gradients (post-local SGD, Lin et al. 2020, arXiv 1808.07217).
  int64_t start_step = 0;
  double slow_momentum = 0;
};

// An average of parameters gives each rank the same weight, even if a rank has fewer samples in its
// last batch. The momentum of the optimizer is not averaged. Parameters are also averaged at the end
// of each epoch.
//
// Slow momentum (SlowMo, Wang et al. 2020, arXiv 1910.00643, algorithm 1, with slow learning rate 1) computes
//   u = b u + (y - x) / r;  y = y - r u
// after each average, where b is the slow momentum, x the average, y the parameters after the previous
// average and r the learning rate.
class LocalSgdStrategy : public Strategy {
 public:
  LocalSgdStrategy(Model& model, Communicator& communicator, const LocalSgdOptions& options);

  void Step(StepTask& task) override;
  void EndEpoch() override;
  std::vector<at::Tensor> Trained() override;
  void SyncBuffers() override;
  bool averages_gradients() const override { return step_ < options_.start_step; }
  std::string WhyNotRecorded() const override {
    return "engine native/local-sgd communicates in some steps only; use native/ddp";
  }
  Stored stored() const override { return Stored::kAveraged; }
  // Returns the position between two averages, the slow momentum, and the state of the strategy of
  // the first steps.
  NamedTensors State() override;
  void LoadState(const std::vector<NamedTensors>& of_ranks) override;
  // Slow momentum keeps the parameters after the last average and a momentum of their averages, like an
  // optimizer.
  ModelMemory Memory(const ModelMemory& found) const override;
  ModelMemory MemoryByFormula(double parameters) const override;
  void AppendMetrics(std::vector<Metric>& metrics) const override;

 private:
  void Average(double rate);
  void BeginSlowMomentum();

  Model& model_;
  Communicator& communicator_;
  const LocalSgdOptions options_;
  std::unique_ptr<DdpStrategy> together_;  // strategy of the first steps; null afterwards
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> blocks_;           // the memory of the parameters
  std::vector<at::Tensor> previous_, slow_;  // y and u of each block
  int64_t step_ = 0, since_average_ = 0, averages_ = 0;
  double rate_ = 0;  // learning rate of the last step
};

}  // namespace scalelab::trainer
