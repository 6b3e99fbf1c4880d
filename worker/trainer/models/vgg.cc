#include "worker/trainer/models/vgg.h"

#include <memory>

#include "worker/trainer/models/dropout.h"

namespace scalelab::trainer {
namespace {

using namespace torch::nn;  // NOLINT: a network is a list of its layers

constexpr int kHalve = 0;
constexpr int kWidths[] = {64,     64,  kHalve, 128, 128,    kHalve, 256, 256, 256,
                           kHalve, 512, 512,    512, kHalve, 512,    512, 512, kHalve};

Conv2d Convolution(int64_t in, int64_t out) {
  Conv2d conv(Conv2dOptions(in, out, 3).padding(1));
  init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
  init::zeros_(conv->bias);
  return conv;
}

Linear FullyConnected(int64_t in, int64_t out) {
  Linear linear(in, out);
  init::normal_(linear->weight, 0, 0.01);
  init::zeros_(linear->bias);
  return linear;
}

ReLU Rectify() { return ReLU(ReLUOptions(/*inplace=*/true)); }

}  // namespace

Vgg16::Vgg16(int classes, const BatchNormOptions&) {
  int64_t channels = 3;
  for (int width : kWidths) {
    if (width == kHalve) {
      features_->push_back(MaxPool2d(MaxPool2dOptions(2).stride(2)));
      continue;
    }
    features_->push_back(Convolution(channels, width));
    features_->push_back(Rectify());
    channels = width;
  }
  register_module("features", features_);
  classifier_ = register_module(
      "classifier", Sequential(FullyConnected(512 * 7 * 7, 4096), Rectify(),
                               std::make_shared<DropoutLayer>(0.5), FullyConnected(4096, 4096), Rectify(),
                               std::make_shared<DropoutLayer>(0.5), FullyConnected(4096, classes)));
}

at::Tensor Vgg16::forward(const at::Tensor& images) {
  const at::Tensor x = at::adaptive_avg_pool2d(features_->forward(images), {7, 7});
  return classifier_->forward(x.flatten(1));
}

}  // namespace scalelab::trainer
