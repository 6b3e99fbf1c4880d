#include "worker/trainer/strategies/horovod/fusion_buffer.h"

#include <cstring>

namespace scalelab::trainer::horovod {
namespace {

// Returns the number of elements with padding.
int64_t PaddedSize(const at::Tensor& tensor) {
  const int64_t step = 64 / static_cast<int64_t>(tensor.element_size());
  return (tensor.numel() + step - 1) / step * step;
}

// Copies between flat tensors. On the CPU it uses memcpy: Tensor::copy_ would start a second OpenMP thread
// team for the calling thread.
void Copy(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cpu()) {
    std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
  } else {
    to.copy_(from, /*non_blocking=*/true);
  }
}

}  // namespace

at::Tensor FlatView(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_non_overlapping_and_dense(), "gradients must be dense blocks of memory");
  return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

at::Tensor FusionBuffer::Pack(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += PaddedSize(tensor);
  const at::Tensor& first = tensors.front();
  const int64_t bytes = elements * static_cast<int64_t>(first.element_size());
  if (!memory_.defined() || memory_.numel() < bytes || memory_.device() != first.device()) {
    memory_ = at::empty({bytes}, first.options().dtype(at::kByte));
  }
  const at::Tensor packed = memory_.narrow(0, 0, bytes).view(first.scalar_type());
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t end = offset + PaddedSize(tensor), data_end = offset + tensor.numel();
    Copy(packed.slice(0, offset, data_end), tensor);
    if (data_end < end) packed.slice(0, data_end, end).zero_();
    offset = end;
  }
  return packed;
}

void FusionBuffer::Unpack(const at::Tensor& packed, const std::vector<at::Tensor>& tensors) {
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    Copy(tensor, packed.slice(0, offset, offset + tensor.numel()));
    offset += PaddedSize(tensor);
  }
}

}  // namespace scalelab::trainer::horovod
