// The block of memory in which several tensors are reduced as one.
#pragma once

#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer::horovod {

// The elements of a dense tensor as one row, in the order in which they lie in memory.
at::Tensor FlatView(const at::Tensor& tensor);

// Memory is kept from one use to the next and grows to the largest.
class FusionBuffer {
 public:
  // Copies flat tensors of one type and device one after another, each to a multiple of 64 bytes, and returns
  // the filled part; the gaps are zero.
  at::Tensor Pack(const std::vector<at::Tensor>& tensors);

  // Copies each tensor back out of what Pack returned for them.
  static void Unpack(const at::Tensor& packed, const std::vector<at::Tensor>& tensors);

 private:
  at::Tensor memory_;  // bytes
};

}  // namespace scalelab::trainer::horovod
