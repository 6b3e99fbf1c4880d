// AlexNet: Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), the
// one-tower variant of the network of 2012. Structure and parameter names are those of torchvision.
#pragma once

#include "worker/trainer/models/layers.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

// Five convolutions and three linear layers, without normalization. Training drops half of the inputs of the
// first two linear layers. The initial weights are Torch's defaults. Images have at least 63 x 63 pixels.
class AlexNet : public Model {
 public:
  AlexNet(int classes, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  torch::nn::Sequential features_, classifier_;
};

}  // namespace scalelab::trainer
