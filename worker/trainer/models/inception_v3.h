// Inception V3: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the Inception Architecture for Computer
// Vision" (2015). Structure and parameter names are those of torchvision.
#pragma once

#include <string>
#include <vector>

#include "worker/trainer/models/layers.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

// Convolution without bias, normalization with epsilon 0.001, rectification.
class ConvNorm : public torch::nn::Module {
 public:
  ConvNorm(const torch::nn::Conv2dOptions& options, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d conv_ = nullptr;
  std::shared_ptr<BatchNorm> bn_;
};

// A mixed block of the network: branches with the same input, whose outputs are concatenated by channel.
class InceptionBlock : public torch::nn::Module {
 public:
  struct Layer {
    const char* name;
    int64_t out, height = 1, width = 1;  // output channels and kernel size
    int64_t stride = 1;  // padding keeps the size of the image with stride 1; no padding with stride 2
  };
  enum class Pool { kNone, kAverage, kMax };  // 3 x 3, with stride 1 and with stride 2
  struct Branch {
    std::vector<Layer> layers;
    Pool pool = Pool::kNone;  // before the layers
    bool fork = false;        // the last two layers have the same input, and both contribute to the output
  };

  InceptionBlock(int64_t in, const std::vector<Branch>& branches, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& x);
  // Returns the channels of the output.
  int64_t out() const { return out_; }

 private:
  struct Path {
    std::vector<std::shared_ptr<ConvNorm>> layers;
    Pool pool;
    bool fork;
  };
  std::vector<Path> paths_;
  int64_t out_ = 0;
};

// The second classifier. Its input is the middle of the network, 768 channels of at least 17 x 17 pixels.
class InceptionAuxiliary : public torch::nn::Module {
 public:
  InceptionAuxiliary(int classes, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<ConvNorm> conv0_, conv1_;
  torch::nn::Linear fc_ = nullptr;
};

// Initial weights are normal with deviation 0.1 (0.001 in the auxiliary classifier's linear layer), cut at -2
// and 2. Training drops half of the inputs of the linear layer. Images have at least 299 x 299 pixels, the
// size of the paper; smaller images are too small for the auxiliary classifier.
class InceptionV3 : public Model {
 public:
  InceptionV3(int classes, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& images) override;
  TrainingLogits ForwardTraining(const at::Tensor& images) override;

 private:
  at::Tensor Classify(const at::Tensor& middle);

  torch::nn::Sequential lower_, upper_;  // below and above the auxiliary classifier
  std::shared_ptr<InceptionAuxiliary> auxiliary_;
  torch::nn::Linear fc_ = nullptr;
};

}  // namespace scalelab::trainer
