#include "worker/trainer/models/alexnet.h"

#include <memory>

#include "worker/trainer/models/dropout.h"

namespace scalelab::trainer {
namespace {

using namespace torch::nn;  // NOLINT: a network is a list of its layers

Conv2d Convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  return Conv2d(Conv2dOptions(in, out, kernel).stride(stride).padding(padding));
}

ReLU Rectify() { return ReLU(ReLUOptions(/*inplace=*/true)); }

MaxPool2d Pool() { return MaxPool2d(MaxPool2dOptions(3).stride(2)); }

}  // namespace

AlexNet::AlexNet(int classes, const BatchNormOptions&) {
  features_ = register_module(
      "features",
      Sequential(Convolution(3, 64, 11, 4, 2), Rectify(), Pool(), Convolution(64, 192, 5, 1, 2), Rectify(),
                 Pool(), Convolution(192, 384, 3, 1, 1), Rectify(), Convolution(384, 256, 3, 1, 1), Rectify(),
                 Convolution(256, 256, 3, 1, 1), Rectify(), Pool()));
  classifier_ =
      register_module("classifier", Sequential(std::make_shared<DropoutLayer>(0.5), Linear(256 * 6 * 6, 4096),
                                               Rectify(), std::make_shared<DropoutLayer>(0.5),
                                               Linear(4096, 4096), Rectify(), Linear(4096, classes)));
}

at::Tensor AlexNet::forward(const at::Tensor& images) {
  const at::Tensor x = at::adaptive_avg_pool2d(features_->forward(images), {6, 6});
  return classifier_->forward(x.flatten(1));
}

}  // namespace scalelab::trainer
