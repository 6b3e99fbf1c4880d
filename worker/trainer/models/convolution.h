// Convolution as models call it: Winograd's algorithm where that is faster than LibTorch's, else LibTorch's.
#pragma once

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// conv(x), with gradients. On the CPU in single precision and channels last, a 3 x 3 convolution without
// bias, stride 1, padding 1, one group and channels that are multiples of 16 is computed by F(2x2, 3x3)
// (kernels/winograd_kernels.h): the same sums in another order, within about 1e-6 of their size.
at::Tensor Convolve(torch::nn::Conv2d& conv, const at::Tensor& x);

}  // namespace scalelab::trainer
