// The convolution of the models: Winograd's algorithm where it is faster than LibTorch's
// convolution, else LibTorch's.
#pragma once

#include <torch/nn/modules/conv.h>

#include <vector>

#include "worker/trainer/models/layer_ranks.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Returns conv(x), with gradients. Uses the copy of the weight if there is one (weight_copies.h). On the CPU
// it uses F(2x2, 3x3) (kernels/winograd_kernels.h) in single precision and channels last, for a 3 x 3
// convolution without bias, with stride 1, padding 1, one group and channels that are multiples of 16. F(2x2,
// 3x3) adds in another order, so its results differ from LibTorch's by a relative error of about 1e-6.
at::Tensor Convolve(torch::nn::Conv2d& conv, const at::Tensor& x);

// Does the same if `ranks` has divided the output channels. Each rank then computes a part of the channels,
// and the ranks exchange their parts, so that each returns all channels (Krizhevsky 2014, "One weird trick
// for parallelizing convolutional neural networks", section 3).
at::Tensor Convolve(torch::nn::Conv2d& conv, const at::Tensor& x, LayerRanks& ranks);

// Returns how ranks divide the convolutions of `model`: by output channel.
std::vector<Division> DivideChannels(const torch::nn::Module& model);

}  // namespace scalelab::trainer
