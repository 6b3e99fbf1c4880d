// MobileNetV2: Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: Inverted Residuals and Linear
// Bottlenecks" (2018), table 2, as torchvision builds it and with its names of parameters.
#pragma once

#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

// Seventeen blocks, each a 1 x 1 convolution that widens, a 3 x 3 convolution of each channel alone and a 1 x
// 1 convolution that narrows, plus the input where its shape is kept; every convolution has a normalisation,
// and all but the narrowing ones are rectified and capped at 6. A fifth of the inputs of the linear layer is
// dropped in training. Convolutions are normal with variance 2 / fan-out, the linear layer with deviation
// 0.01 and a bias of zero. Images may have any size; it halves them five times.
class MobileNetV2 : public Model {
 public:
  MobileNetV2(int classes, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  torch::nn::Sequential features_, classifier_;
};

}  // namespace scalelab::trainer
