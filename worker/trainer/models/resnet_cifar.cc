#include "worker/trainer/models/resnet_cifar.h"

#include <string>

namespace scalelab::trainer {
namespace {

torch::nn::Conv2d Convolution3x3(int64_t in, int64_t out, int64_t stride) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanIn, torch::kReLU);
  return conv;
}

}  // namespace

ResidualBlock::ResidualBlock(int64_t in, int64_t out, int64_t stride, const BatchNormOptions& batch_norm,
                             LayerRanks& ranks)
    : in_(in), out_(out), stride_(stride), ranks_(ranks) {
  conv1_ = register_module("conv1", Convolution3x3(in, out, stride));
  norm1_ = register_module("norm1", std::make_shared<BatchNorm>(out, batch_norm));
  conv2_ = register_module("conv2", Convolution3x3(out, out, 1));
  norm2_ = register_module("norm2", std::make_shared<BatchNorm>(out, batch_norm));
  norm2_->ApplyZeroGamma();
}

at::Tensor ResidualBlock::forward(const at::Tensor& x) {
  const at::Tensor y = norm1_->ForwardRelu(Convolve(conv1_, x, ranks_));
  return norm2_->ForwardAddRelu(Convolve(conv2_, y, ranks_), Shortcut(x));
}

at::Tensor ResidualBlock::Shortcut(const at::Tensor& x) const {
  if (in_ == out_ && stride_ == 1) return x;
  using torch::indexing::None;
  using torch::indexing::Slice;
  const int64_t below = (out_ - in_) / 2;
  return at::constant_pad_nd(
      x.index({Slice(), Slice(), Slice(None, None, stride_), Slice(None, None, stride_)}),
      {0, 0, 0, 0, below, out_ - in_ - below});
}

ResNetCifar::ResNetCifar(int depth, int classes, const BatchNormOptions& batch_norm) {
  TORCH_CHECK(depth >= 8 && (depth - 2) % 6 == 0, "a CIFAR ResNet has 6n + 2 layers, not ", depth);
  conv_ = register_module("conv", Convolution3x3(3, 16, 1));
  norm_ = register_module("norm", std::make_shared<BatchNorm>(16, batch_norm));
  AddBlock({conv_.ptr(), norm_},
           [this](const at::Tensor& x) { return norm_->ForwardRelu(Convolve(conv_, x, layer_ranks())); });
  int64_t channels = 16;
  for (int stage = 1; stage <= 3; ++stage) {
    const int64_t width = 8 << stage;
    for (int i = 0; i < (depth - 2) / 6; ++i) {
      const int64_t stride = stage > 1 && i == 0 ? 2 : 1;
      const std::string name = "stage" + std::to_string(stage) + "_" + std::to_string(i);
      const auto block = register_module(
          name, std::make_shared<ResidualBlock>(channels, width, stride, batch_norm, layer_ranks()));
      AddBlock({block}, [block = block.get()](const at::Tensor& x) { return block->forward(x); });
      channels = width;
    }
  }
  linear_ = register_module("linear", torch::nn::Linear(channels, classes));
  torch::nn::init::kaiming_normal_(linear_->weight, 0.0, torch::kFanIn, torch::kReLU);
  torch::nn::init::zeros_(linear_->bias);
  AddBlock({linear_.ptr()}, [this](const at::Tensor& x) { return linear_(x.mean({2, 3})); });
}

}  // namespace scalelab::trainer
