// ResNet for larger images: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (2015),
// table 1, with 18, 34, 50, 101 or 152 layers.
//
// Structure and parameter names are those of torchvision ("v1.5"): a bottleneck halves the image in its 3 x 3
// convolution, not in its first one as in the paper. Shortcuts of all depths are the paper's option B, with a
// convolution only where the shape changes.
#pragma once

#include <vector>

#include "worker/trainer/models/convolution.h"
#include "worker/trainer/models/divisible_model.h"
#include "worker/trainer/models/layers.h"

namespace scalelab::trainer {

// Convolutions with normalization and rectification between them; then the input is added and the sum
// rectified. Networks of 18 and 34 layers have two 3 x 3 convolutions; the others have the bottleneck 1 x 1,
// 3 x 3, 1 x 1, whose last convolution has four times the channels. Where the shape changes, the shortcut has
// a 1 x 1 convolution and a normalization.
class ImageNetBlock : public torch::nn::Module {
 public:
  // `stride` is that of the bottleneck's 3 x 3 convolution, else of the first one. `width` is the number of
  // channels of the convolutions except the bottleneck's last one.
  ImageNetBlock(int64_t in, int64_t width, int64_t stride, bool bottleneck,
                const BatchNormOptions& batch_norm, LayerRanks& ranks);
  at::Tensor forward(const at::Tensor& x);

 private:
  void Add(int64_t in, int64_t out, int64_t kernel, int64_t stride, const BatchNormOptions& batch_norm);

  LayerRanks& ranks_;
  std::vector<torch::nn::Conv2d> convs_;
  std::vector<std::shared_ptr<BatchNorm>> norms_;
  torch::nn::Conv2d shortcut_conv_ = nullptr;  // null if the input is added unchanged
  std::shared_ptr<BatchNorm> shortcut_norm_;
};

// A 7 x 7 convolution with stride 2, maximum over 3 x 3 with stride 2, four stages of blocks, the mean over
// each channel, a linear layer. All stages but the first halve the image. Images may have any size.
// Convolutions have no bias; their initial weights are normal with variance 2 / fan-out (He et al. 2015b).
// Every normalization starts with weight 1, except the last one of a block with option zero_gamma; the linear
// layer starts with Torch's default weights.
class ResNetImageNet : public DivisibleModel {
 public:
  ResNetImageNet(int depth, int classes, const BatchNormOptions& batch_norm);
  at::Tensor Example() const override { return at::zeros({1, 3, 64, 64}); }
  std::vector<Division> Divisions() const override { return DivideChannels(*this); }

 private:
  torch::nn::Conv2d conv1_ = nullptr;
  std::shared_ptr<BatchNorm> bn1_;
  torch::nn::Linear fc_ = nullptr;
};

}  // namespace scalelab::trainer
