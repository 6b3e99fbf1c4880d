// The part of LibTorch that the whole trainer uses: tensors, their operators and custom gradients. It is
// precompiled once. Networks add models/layers.h; <torch/torch.h> would cost every translation unit four
// times as much.
#pragma once

// First, because headers of LibTorch use vectors of IValue before its definition, and Clang then instantiates them too early.
#include <ATen/core/ivalue.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
