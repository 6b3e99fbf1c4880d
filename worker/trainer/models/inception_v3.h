// Inception V3: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the Inception Architecture for Computer
// Vision" (2015), as torchvision builds it and with its names of parameters.
#pragma once

#include <string>
#include <vector>

#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

// Convolution without bias, normalisation with epsilon 0.001, rectified.
class ConvNorm : public torch::nn::Module {
 public:
  ConvNorm(const torch::nn::Conv2dOptions& options, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d conv_ = nullptr;
  std::shared_ptr<BatchNorm> bn_;
};

// One of the network's mixed blocks: branches over the same input, their channels one after another.
class InceptionBlock : public torch::nn::Module {
 public:
  struct Layer {
    const char* name;
    int64_t out, height = 1, width = 1;  // channels, and size of the kernel
    int64_t stride = 1;                  // with 1 the image keeps its size by padding; with 2 there is none
  };
  enum class Pool { kNone, kAverage, kMax };  // 3 x 3, with stride 1 and with stride 2
  struct Branch {
    std::vector<Layer> layers;
    Pool pool = Pool::kNone;  // before the layers
    bool fork = false;        // the last two layers have the same input, and both give output
  };

  InceptionBlock(int64_t in, const std::vector<Branch>& branches, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& x);
  // Channels of the output.
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

// The second classifier, on what the middle of the network sees, 768 channels of at least 17 x 17 pixels.
class InceptionAuxiliary : public torch::nn::Module {
 public:
  InceptionAuxiliary(int classes, const BatchNormOptions& batch_norm);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<ConvNorm> conv0_, conv1_;
  torch::nn::Linear fc_ = nullptr;
};

// Weights are normal with deviation 0.1 (0.001 in the auxiliary classifier's linear layer), cut at -2 and 2.
// Half of the inputs of the linear layer is dropped in training. Images have at least 299 x 299 pixels, the
// size of the paper: smaller ones leave nothing for the auxiliary classifier.
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
