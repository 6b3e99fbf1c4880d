// The part of LibTorch that the whole trainer uses: tensors, their operators and custom gradients. It is
// precompiled once. Networks add models/layers.h; <torch/torch.h> would cost every translation unit four
// times as much.
#pragma once

// clang-format off: ivalue.h comes first. Other headers of LibTorch use vectors of IValue before its definition, and Clang would
// instantiate them too early.
#include <ATen/core/ivalue.h>
// clang-format on
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
