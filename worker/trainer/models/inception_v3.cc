#include "worker/trainer/models/inception_v3.h"

#include <memory>
#include <utility>

#include "worker/trainer/models/convolution.h"
#include "worker/trainer/models/dropout.h"

namespace scalelab::trainer {
namespace {

using torch::nn::Conv2dOptions;
using Branches = std::vector<InceptionBlock::Branch>;
using enum InceptionBlock::Pool;

constexpr double kEpsilon = 1e-3, kDropout = 0.5;

// Numbers outside of the bounds are very rare. They are clamped, and not drawn again.
void InitWeight(at::Tensor& weight, double deviation = 0.1) {
  const at::NoGradGuard no_grad;
  weight.normal_(0, deviation).clamp_(-2, 2);
}

Branches BlockA(int64_t pool) {
  return {{{{"branch1x1", 64}}},
          {{{"branch5x5_1", 48}, {"branch5x5_2", 64, 5, 5}}},
          {{{"branch3x3dbl_1", 64}, {"branch3x3dbl_2", 96, 3, 3}, {"branch3x3dbl_3", 96, 3, 3}}},
          {{{"branch_pool", pool}}, kAverage}};
}

Branches BlockB() {
  return {{{{"branch3x3", 384, 3, 3, 2}}},
          {{{"branch3x3dbl_1", 64}, {"branch3x3dbl_2", 96, 3, 3}, {"branch3x3dbl_3", 96, 3, 3, 2}}},
          {{}, kMax}};
}

Branches BlockC(int64_t width) {
  return {{{{"branch1x1", 192}}},
          {{{"branch7x7_1", width}, {"branch7x7_2", width, 1, 7}, {"branch7x7_3", 192, 7, 1}}},
          {{{"branch7x7dbl_1", width},
            {"branch7x7dbl_2", width, 7, 1},
            {"branch7x7dbl_3", width, 1, 7},
            {"branch7x7dbl_4", width, 7, 1},
            {"branch7x7dbl_5", 192, 1, 7}}},
          {{{"branch_pool", 192}}, kAverage}};
}

Branches BlockD() {
  return {{{{"branch3x3_1", 192}, {"branch3x3_2", 320, 3, 3, 2}}},
          {{{"branch7x7x3_1", 192},
            {"branch7x7x3_2", 192, 1, 7},
            {"branch7x7x3_3", 192, 7, 1},
            {"branch7x7x3_4", 192, 3, 3, 2}}},
          {{}, kMax}};
}

Branches BlockE() {
  return {{{{"branch1x1", 320}}},
          {{{"branch3x3_1", 384}, {"branch3x3_2a", 384, 1, 3}, {"branch3x3_2b", 384, 3, 1}}, kNone, true},
          {{{"branch3x3dbl_1", 448},
            {"branch3x3dbl_2", 384, 3, 3},
            {"branch3x3dbl_3a", 384, 1, 3},
            {"branch3x3dbl_3b", 384, 3, 1}},
           kNone,
           true},
          {{{"branch_pool", 192}}, kAverage}};
}

}  // namespace

ConvNorm::ConvNorm(const Conv2dOptions& options, const BatchNormOptions& batch_norm) {
  conv_ = register_module("conv", torch::nn::Conv2d(Conv2dOptions(options).bias(false)));
  InitWeight(conv_->weight);
  bn_ = register_module("bn", std::make_shared<BatchNorm>(options.out_channels(), batch_norm, kEpsilon));
}

at::Tensor ConvNorm::forward(const at::Tensor& x) { return bn_->ForwardRelu(Convolve(conv_, x)); }

InceptionBlock::InceptionBlock(int64_t in, const std::vector<Branch>& branches,
                               const BatchNormOptions& batch_norm) {
  for (const Branch& branch : branches) {
    Path path{{}, branch.pool, branch.fork};
    int64_t channels = in;
    for (size_t i = 0; i < branch.layers.size(); ++i) {
      const Layer& layer = branch.layers[i];
      const bool pad = layer.stride == 1;
      const auto options = Conv2dOptions(channels, layer.out, {layer.height, layer.width})
                               .stride(layer.stride)
                               .padding({pad ? layer.height / 2 : 0, pad ? layer.width / 2 : 0});
      path.layers.push_back(register_module(layer.name, std::make_shared<ConvNorm>(options, batch_norm)));
      const bool first_of_fork = branch.fork && i + 2 == branch.layers.size();
      if (first_of_fork) {
        out_ += layer.out;
      } else {
        channels = layer.out;
      }
    }
    out_ += channels;
    paths_.push_back(std::move(path));
  }
}

at::Tensor InceptionBlock::forward(const at::Tensor& x) {
  std::vector<at::Tensor> outputs;
  for (const Path& path : paths_) {
    at::Tensor y = path.pool == kAverage ? at::avg_pool2d(x, 3, 1, 1)
                   : path.pool == kMax   ? at::max_pool2d(x, 3, 2)
                                         : x;
    const size_t in_line = path.layers.size() - (path.fork ? 2 : 0);
    for (size_t i = 0; i < in_line; ++i) y = path.layers[i]->forward(y);
    if (!path.fork) outputs.push_back(y);
    for (size_t i = in_line; i < path.layers.size(); ++i) outputs.push_back(path.layers[i]->forward(y));
  }
  return at::cat(outputs, 1);
}

InceptionAuxiliary::InceptionAuxiliary(int classes, const BatchNormOptions& batch_norm) {
  conv0_ = register_module("conv0", std::make_shared<ConvNorm>(Conv2dOptions(768, 128, 1), batch_norm));
  conv1_ = register_module("conv1", std::make_shared<ConvNorm>(Conv2dOptions(128, 768, 5), batch_norm));
  fc_ = register_module("fc", torch::nn::Linear(768, classes));
  InitWeight(fc_->weight, 0.001);
}

at::Tensor InceptionAuxiliary::forward(const at::Tensor& x) {
  return fc_(conv1_->forward(conv0_->forward(at::avg_pool2d(x, 5, 3))).mean({2, 3}));
}

InceptionV3::InceptionV3(int classes, const BatchNormOptions& batch_norm) {
  int64_t channels = 3;
  // The blocks are registered here with torchvision's names; the sequences only run them.
  const auto conv = [&](const char* name, const Conv2dOptions& options) {
    lower_->push_back(register_module(name, std::make_shared<ConvNorm>(options, batch_norm)));
    channels = options.out_channels();
  };
  const auto mixed = [&](torch::nn::Sequential& part, const char* name, const Branches& branches) {
    const auto block =
        register_module(name, std::make_shared<InceptionBlock>(channels, branches, batch_norm));
    part->push_back(block);
    channels = block->out();
  };
  const auto halve = [&] {
    lower_->push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2)));
  };

  conv("Conv2d_1a_3x3", Conv2dOptions(channels, 32, 3).stride(2));
  conv("Conv2d_2a_3x3", Conv2dOptions(channels, 32, 3));
  conv("Conv2d_2b_3x3", Conv2dOptions(channels, 64, 3).padding(1));
  halve();
  conv("Conv2d_3b_1x1", Conv2dOptions(channels, 80, 1));
  conv("Conv2d_4a_3x3", Conv2dOptions(channels, 192, 3));
  halve();
  mixed(lower_, "Mixed_5b", BlockA(32));
  mixed(lower_, "Mixed_5c", BlockA(64));
  mixed(lower_, "Mixed_5d", BlockA(64));
  mixed(lower_, "Mixed_6a", BlockB());
  mixed(lower_, "Mixed_6b", BlockC(128));
  mixed(lower_, "Mixed_6c", BlockC(160));
  mixed(lower_, "Mixed_6d", BlockC(160));
  mixed(lower_, "Mixed_6e", BlockC(192));
  auxiliary_ = register_module("AuxLogits", std::make_shared<InceptionAuxiliary>(classes, batch_norm));
  mixed(upper_, "Mixed_7a", BlockD());
  mixed(upper_, "Mixed_7b", BlockE());
  mixed(upper_, "Mixed_7c", BlockE());
  fc_ = register_module("fc", torch::nn::Linear(channels, classes));
  InitWeight(fc_->weight);
}

at::Tensor InceptionV3::Classify(const at::Tensor& middle) {
  return fc_(ApplyDropout(upper_->forward(middle).mean({2, 3}), kDropout, is_training()));
}

at::Tensor InceptionV3::forward(const at::Tensor& images) { return Classify(lower_->forward(images)); }

TrainingLogits InceptionV3::ForwardTraining(const at::Tensor& images) {
  const at::Tensor middle = lower_->forward(images);
  const at::Tensor auxiliary = auxiliary_->forward(middle);
  return {Classify(middle), auxiliary};
}

}  // namespace scalelab::trainer
