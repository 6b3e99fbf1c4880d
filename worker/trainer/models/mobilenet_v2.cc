#include "worker/trainer/models/mobilenet_v2.h"

#include <memory>

#include "worker/trainer/models/dropout.h"

namespace scalelab::trainer {
namespace {

using namespace torch::nn;  // NOLINT: a network is a list of its layers

struct Stage {
  int widen, channels, blocks, stride;  // the stride of the first block; the others have stride 1
};

constexpr Stage kStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                             {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};

Conv2d Convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1, int64_t groups = 1) {
  Conv2d conv(Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).groups(groups).bias(false));
  init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
  return conv;
}

// A sequence that may be part of another one. Torch does not nest its own Sequential, whose forward
// is a template.
class Layer : public SequentialImpl {
 public:
  Layer(const Conv2d& conv, const BatchNormOptions& batch_norm)
      : SequentialImpl(conv, std::make_shared<BatchNorm>(conv->options.out_channels(), batch_norm),
                       ReLU6(ReLU6Options(/*inplace=*/true))) {}
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};

std::shared_ptr<Layer> MakeLayer(const Conv2d& conv, const BatchNormOptions& batch_norm) {
  return std::make_shared<Layer>(conv, batch_norm);
}

class InvertedResidual : public Module {
 public:
  InvertedResidual(int64_t in, int64_t out, int64_t stride, int64_t widen, const BatchNormOptions& batch_norm)
      : add_input_(stride == 1 && in == out) {
    const int64_t width = in * widen;
    if (widen != 1) conv_->push_back(MakeLayer(Convolution(in, width, 1), batch_norm));
    conv_->push_back(MakeLayer(Convolution(width, width, 3, stride, width), batch_norm));
    conv_->push_back(Convolution(width, out, 1));
    conv_->push_back(std::make_shared<BatchNorm>(out, batch_norm));
    register_module("conv", conv_);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = conv_->forward(x);
    return add_input_ ? x + y : y;
  }

 private:
  const bool add_input_;
  Sequential conv_;
};

}  // namespace

MobileNetV2::MobileNetV2(int classes, const BatchNormOptions& batch_norm) {
  constexpr int64_t kFirst = 32, kLast = 1280;
  features_->push_back(MakeLayer(Convolution(3, kFirst, 3, 2), batch_norm));
  int64_t channels = kFirst;
  for (const Stage& stage : kStages) {
    for (int i = 0; i < stage.blocks; ++i) {
      features_->push_back(std::make_shared<InvertedResidual>(
          channels, stage.channels, i == 0 ? stage.stride : 1, stage.widen, batch_norm));
      channels = stage.channels;
    }
  }
  features_->push_back(MakeLayer(Convolution(channels, kLast, 1), batch_norm));
  register_module("features", features_);

  Linear linear(kLast, classes);
  init::normal_(linear->weight, 0, 0.01);
  init::zeros_(linear->bias);
  classifier_ = register_module("classifier", Sequential(std::make_shared<DropoutLayer>(0.2), linear));
}

at::Tensor MobileNetV2::forward(const at::Tensor& images) {
  return classifier_->forward(features_->forward(images).mean({2, 3}));
}

}  // namespace scalelab::trainer
