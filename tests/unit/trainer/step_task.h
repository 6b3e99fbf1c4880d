// A task for a step of a strategy, whose losses a test computes.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "worker/trainer/optim/sgd.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Computes the loss of a part when the strategy asks for it.
using LossOfPart = std::function<at::Tensor()>;

class LossTask : public StepTask {
 public:
  LossTask(std::vector<LossOfPart> losses, Sgd& optimizer, double rate)
      : losses_(std::move(losses)), optimizer_(optimizer), rate_(rate) {}
  LossTask(const std::vector<at::Tensor>& losses, Sgd& optimizer, double rate)
      : optimizer_(optimizer), rate_(rate) {
    for (const at::Tensor& loss : losses) losses_.emplace_back([loss] { return loss; });
  }

  int64_t parts() const override { return std::ssize(losses_); }
  int64_t most_parts() const override { return parts(); }
  at::Tensor Forward(int64_t part) override { return losses_[part](); }
  void Measured(BackwardCost measured) override { cost = std::move(measured); }
  void Update() override { optimizer_.Step(rate_); }
  double rate() const override { return rate_; }
  StepMarks& marks() override { return marks_; }

  BackwardCost cost;

 private:
  std::vector<LossOfPart> losses_;
  Sgd& optimizer_;
  const double rate_;
  StepMarks marks_{at::kCPU};
};

}  // namespace scalelab::trainer
