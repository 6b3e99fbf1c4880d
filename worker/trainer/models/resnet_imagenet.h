// ResNet for larger images: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (2015),
// table 1, with 18, 34, 50, 101 or 152 layers.
//
// As torchvision builds it: a bottleneck that halves the image does so in its 3 x 3 convolution, where the
// paper does in the first one ("v1.5"), and shortcuts of all depths are the paper's option B, a convolution
// only where the shape changes. Parameters have torchvision's names.
#pragma once

#include <vector>

#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

// Convolutions with a normalisation each and rectified between, plus the input, rectified: for 18 and 34
// layers two of 3 x 3, else the bottleneck 1 x 1, 3 x 3, 1 x 1, whose last one has four times the channels.
// Where the shape changes, the input passes a 1 x 1 convolution and a normalisation of its own.
class ImageNetBlock : public torch::nn::Module {
 public:
  // The one 3 x 3 convolution of a bottleneck, else the first, has `stride`. `width` is the number of
  // channels of the convolutions, but for the bottleneck's last one.
  ImageNetBlock(int64_t in, int64_t width, int64_t stride, bool bottleneck,
                const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& x);

 private:
  void Add(int64_t in, int64_t out, int64_t kernel, int64_t stride, const BatchNormOptions& batch_norm);

  std::vector<torch::nn::Conv2d> convs_;
  std::vector<std::shared_ptr<BatchNorm>> norms_;
  torch::nn::Sequential downsample_ = nullptr;  // null where the input is added as it is
};

// A 7 x 7 convolution with stride 2, maximum over 3 x 3 with stride 2, four stages of blocks, all but the
// first of which halve the image, the mean over each channel, a linear layer. Images need not be of 224 x 224
// pixels: any size will do. Convolutions have no bias; their weights are normal with variance 2 / fan-out (He
// et al. 2015b). Every normalisation starts with weight 1, also the last of a block; the linear layer starts
// as Torch's does.
class ResNetImageNet : public Model {
 public:
  ResNetImageNet(int depth, int classes, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  torch::nn::Conv2d conv1_ = nullptr;
  std::shared_ptr<BatchNorm> bn1_;
  std::vector<std::shared_ptr<ImageNetBlock>> blocks_;  // of all stages
  torch::nn::Linear fc_ = nullptr;
};

}  // namespace scalelab::trainer
