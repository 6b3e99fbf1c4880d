// A step of a strategy on losses that a test computes.
#pragma once

#include <utility>
#include <vector>

#include "worker/trainer/optim/sgd.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

class LossTask : public StepTask {
 public:
  LossTask(std::vector<at::Tensor> losses, Sgd& optimizer, double rate)
      : losses_(std::move(losses)), optimizer_(optimizer), rate_(rate) {}

  int64_t parts() const override { return std::ssize(losses_); }
  int64_t most_parts() const override { return parts(); }
  at::Tensor Forward(int64_t part) override { return losses_[part]; }
  void Measured(BackwardCost measured) override { cost = std::move(measured); }
  void Update() override { optimizer_.Step(rate_); }
  double rate() const override { return rate_; }
  StepMarks& marks() override { return marks_; }

  BackwardCost cost;

 private:
  const std::vector<at::Tensor> losses_;
  Sgd& optimizer_;
  const double rate_;
  StepMarks marks_{at::kCPU};
};

}  // namespace scalelab::trainer
