// The part of LibTorch that the whole trainer uses: tensors, their operators and custom gradients. It is
// precompiled once. Networks add models/layers.h; <torch/torch.h> would cost every translation unit four
// times as much.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
