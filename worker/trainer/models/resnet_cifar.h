// ResNet for 32 x 32 images: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition"
// (2015), section 4.2.
#pragma once

#include "worker/trainer/models/convolution.h"
#include "worker/trainer/models/divisible_model.h"
#include "worker/trainer/models/layers.h"

namespace scalelab::trainer {

// Computes conv - norm - relu - conv - norm, adds the input, and rectifies. Where the number of channels
// grows, the shortcut is option A: every other pixel in both directions and new channels of zero (half of
// them below, half above). It has no parameters.
class ResidualBlock : public torch::nn::Module {
 public:
  ResidualBlock(int64_t in, int64_t out, int64_t stride, const BatchNormOptions& batch_norm,
                LayerRanks& ranks);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor Shortcut(const at::Tensor& x) const;

  int64_t in_, out_, stride_;
  LayerRanks& ranks_;
  torch::nn::Conv2d conv1_ = nullptr, conv2_ = nullptr;
  std::shared_ptr<BatchNorm> norm1_, norm2_;
};

// Depth 6n + 2: a convolution, three stages of n blocks with 16, 32 and 64 channels, the mean over each
// channel, a linear layer. Convolutions have no bias. Initial weights follow He et al. 2015b (normal,
// variance 2 / fan-in); the linear layer's bias is zero. With option zero_gamma, the last normalization of
// each block starts with weight 0.
class ResNetCifar : public DivisibleModel {
 public:
  ResNetCifar(int depth, int classes, const BatchNormOptions& batch_norm);
  at::Tensor Example() const override { return at::zeros({1, 3, 32, 32}); }
  std::vector<Division> Divisions() const override { return DivideChannels(*this); }

 private:
  torch::nn::Conv2d conv_ = nullptr;
  std::shared_ptr<BatchNorm> norm_;
  torch::nn::Linear linear_ = nullptr;
};

}  // namespace scalelab::trainer
