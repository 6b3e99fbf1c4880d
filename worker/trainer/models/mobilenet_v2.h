// MobileNetV2: Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: Inverted Residuals and Linear
// Bottlenecks" (2018), table 2. Structure and parameter names are those of torchvision.
#pragma once

#include "worker/trainer/models/layers.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

// Seventeen blocks. Each is a widening 1 x 1 convolution, a depthwise 3 x 3 convolution and a narrowing 1 x 1
// convolution, plus the input if the shape does not change. Every convolution has a normalization, and all
// but the narrowing ones are rectified and capped at 6. Training drops a fifth of the inputs of the linear
// layer. Initial weights are normal: convolutions with variance 2 / fan-out, the linear layer with deviation
// 0.01 and a bias of zero. Images may have any size; the network halves them five times.
class MobileNetV2 : public Model {
 public:
  MobileNetV2(int classes, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  torch::nn::Sequential features_, classifier_;
};

}  // namespace scalelab::trainer
