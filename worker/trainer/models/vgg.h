// VGG-16: Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014),
// table 1, configuration D. Structure and parameter names are those of torchvision.
#pragma once

#include "worker/trainer/models/layers.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

// Thirteen 3 x 3 convolutions in five groups, each of which ends by halving the image, and three linear
// layers, without normalization. Training drops half of the outputs of the first two linear layers. Initial
// weights are normal: convolutions with variance 2 / fan-out (He et al. 2015b), linear layers with deviation
// 0.01; biases are zero. Images have at least 32 x 32 pixels.
class Vgg16 : public Model {
 public:
  Vgg16(int classes, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  torch::nn::Sequential features_, classifier_;
};

}  // namespace scalelab::trainer
