// The engine native/horovod: a background thread negotiates, fuses and reduces gradients as they become
// ready, like Horovod (Sergeev and Del Balso 2018, arXiv 1802.05799, and horovod/common).
#pragma once

#include "worker/trainer/strategies/gradient_hooks.h"
#include "worker/trainer/strategies/gradient_squares.h"
#include "worker/trainer/strategies/horovod/background_loop.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

class HorovodStrategy : public GradientStrategy {
 public:
  // Ranks negotiate over `control`, or over `communicator` if `control` is null.
  HorovodStrategy(Model& model, Communicator& communicator, const horovod::Options& options,
                  std::unique_ptr<Communicator> control = nullptr);

  void Accumulate(const at::Tensor& loss) override;
  BackwardCost Backward(const at::Tensor& loss) override;
  void Join() override;
  void SyncBuffers() override;
  std::string WhyNotRecorded() const override {
    return "engine native/horovod negotiates with the other ranks in each step; use native/ddp";
  }
  Stored stored() const override { return Stored::kOnce; }
  void AppendMetrics(std::vector<Metric>& metrics) const override;

  const horovod::Counters& counters() const { return loop_.counters(); }

 private:
  void BeginStep();
  void Submit(int index);

  Communicator& communicator_;
  const bool fp16_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> compressed_;  // float16 gradients of this step, by parameter
  std::vector<bool> submitted_;         // by parameter: whether it was submitted in this step
  bool in_step_ = false;                // whether gradients are being accumulated
  bool synchronising_ = false;          // whether hooks submit gradients
  BackwardCost cost_;
  GradientSquares rank_squares_;  // squares of the submitted gradients
  horovod::BackgroundLoop loop_;
  GradientHooks hooks_;  // the last member, because the hooks use all others
};

}  // namespace scalelab::trainer
