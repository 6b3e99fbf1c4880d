#include "worker/trainer/models/resnet_imagenet.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace scalelab::trainer {
namespace {

struct Plan {
  int depth;
  bool bottleneck;
  int blocks[4];  // of each stage
};

constexpr Plan kPlans[] = {{18, false, {2, 2, 2, 2}},
                           {34, false, {3, 4, 6, 3}},
                           {50, true, {3, 4, 6, 3}},
                           {101, true, {3, 4, 23, 3}},
                           {152, true, {3, 8, 36, 3}}};

torch::nn::Conv2d Convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  torch::nn::Conv2d conv(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
  return conv;
}

}  // namespace

ImageNetBlock::ImageNetBlock(int64_t in, int64_t width, int64_t stride, bool bottleneck,
                             const BatchNormOptions& batch_norm, LayerRanks& ranks)
    : ranks_(ranks) {
  const int64_t out = bottleneck ? 4 * width : width;
  if (bottleneck) {
    Add(in, width, 1, 1, batch_norm);
    Add(width, width, 3, stride, batch_norm);
    Add(width, out, 1, 1, batch_norm);
  } else {
    Add(in, width, 3, stride, batch_norm);
    Add(width, out, 3, 1, batch_norm);
  }
  norms_.back()->ApplyZeroGamma();
  if (in != out || stride != 1) {
    shortcut_conv_ = Convolution(in, out, 1, stride);
    shortcut_norm_ = std::make_shared<BatchNorm>(out, batch_norm);
    register_module("downsample", torch::nn::Sequential(shortcut_conv_, shortcut_norm_));
  }
}

void ImageNetBlock::Add(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                        const BatchNormOptions& batch_norm) {
  const std::string number = std::to_string(convs_.size() + 1);
  convs_.push_back(register_module("conv" + number, Convolution(in, out, kernel, stride)));
  norms_.push_back(register_module("bn" + number, std::make_shared<BatchNorm>(out, batch_norm)));
}

at::Tensor ImageNetBlock::forward(const at::Tensor& x) {
  at::Tensor y = x;
  const size_t last = convs_.size() - 1;
  for (size_t i = 0; i < last; ++i) y = norms_[i]->ForwardRelu(Convolve(convs_[i], y, ranks_));
  const at::Tensor shortcut =
      shortcut_norm_ == nullptr ? x : shortcut_norm_->forward(Convolve(shortcut_conv_, x, ranks_));
  return norms_[last]->ForwardAddRelu(Convolve(convs_[last], y, ranks_), shortcut);
}

ResNetImageNet::ResNetImageNet(int depth, int classes, const BatchNormOptions& batch_norm) {
  const Plan* plan = std::ranges::find(kPlans, depth, &Plan::depth);
  TORCH_CHECK(plan != std::end(kPlans), "an ImageNet ResNet has 18, 34, 50, 101 or 152 layers, not ", depth);
  conv1_ = register_module("conv1", Convolution(3, 64, 7, 2));
  bn1_ = register_module("bn1", std::make_shared<BatchNorm>(64, batch_norm));
  AddBlock({conv1_.ptr(), bn1_}, [this](const at::Tensor& x) {
    return at::max_pool2d(bn1_->ForwardRelu(Convolve(conv1_, x, layer_ranks())), 3, 2, 1);
  });
  int64_t channels = 64;
  for (int stage = 1; stage <= 4; ++stage) {
    const int64_t width = 32 << stage;
    torch::nn::ModuleList layer;
    register_module("layer" + std::to_string(stage), layer);
    for (int i = 0; i < plan->blocks[stage - 1]; ++i) {
      const int64_t stride = stage > 1 && i == 0 ? 2 : 1;
      const auto block = std::make_shared<ImageNetBlock>(channels, width, stride, plan->bottleneck,
                                                         batch_norm, layer_ranks());
      layer->push_back(block);
      AddBlock({block}, [block = block.get()](const at::Tensor& x) { return block->forward(x); });
      channels = plan->bottleneck ? 4 * width : width;
    }
  }
  fc_ = register_module("fc", torch::nn::Linear(channels, classes));
  AddBlock({fc_.ptr()}, [this](const at::Tensor& x) { return fc_(x.mean({2, 3})); });
}

}  // namespace scalelab::trainer
