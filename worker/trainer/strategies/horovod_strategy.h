// native/horovod: gradients are reduced one by one as they become ready, agreed upon and fused by a
// background thread, after Horovod (Sergeev and Del Balso 2018, arXiv 1802.05799, and horovod/common).
#pragma once

#include "worker/trainer/strategies/gradient_hooks.h"
#include "worker/trainer/strategies/horovod/background_loop.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

class HorovodStrategy : public Strategy {
 public:
  HorovodStrategy(Model& model, Communicator& communicator, const horovod::Options& options);

  void Accumulate(const at::Tensor& loss) override;
  BackwardCost Backward(const at::Tensor& loss) override;
  void Join() override;
  void SyncBuffers() override;
  std::string WhyNotRecorded() const override {
    return "engine native/horovod agrees with the other ranks in each step, use native/ddp";
  }
  void AppendMetrics(std::vector<Metric>& metrics) const override;

  const horovod::Counters& counters() const { return loop_.counters(); }

 private:
  void BeginStep();
  void Submit(int index);

  Model& model_;
  Communicator& communicator_;
  const bool fp16_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> compressed_;  // float16 gradients of this step, by parameter
  std::vector<bool> submitted_;         // in this step
  bool in_step_ = false;                // gradients of this step are being added up
  bool synchronising_ = false;          // hooks submit
  BackwardCost cost_;
  horovod::BackgroundLoop loop_;
  GradientHooks hooks_;  // last: they use all of the above
};

}  // namespace scalelab::trainer
