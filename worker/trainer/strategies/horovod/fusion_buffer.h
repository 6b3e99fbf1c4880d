// A block of memory that contains several tensors, so that one operation reduces them.
#pragma once

#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer::horovod {

// Returns the elements of a dense tensor as a one-dimensional view, in memory order.
at::Tensor FlatView(const at::Tensor& tensor);

// Keeps its memory between uses. The memory grows to the largest use.
class FusionBuffer {
 public:
  // Copies flat tensors of one type and device one after another, each padded with zeros to a multiple of 64
  // bytes. Returns the filled part of the memory.
  at::Tensor Pack(const std::vector<at::Tensor>& tensors);

  // Copies each tensor back from the result of Pack for the same tensors.
  static void Unpack(const at::Tensor& packed, const std::vector<at::Tensor>& tensors);

 private:
  at::Tensor memory_;  // a tensor of bytes
};

}  // namespace scalelab::trainer::horovod
