#include "worker/trainer/strategies/gradient_buckets.h"

#include <algorithm>
#include <numeric>

namespace scalelab::trainer {

std::vector<int> ReverseOrder(size_t count) {
  std::vector<int> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

std::vector<std::vector<int>> AssignBuckets(const std::vector<at::Tensor>& parameters,
                                            const std::vector<int>& order, const BucketCaps& caps) {
  std::vector<std::vector<int>> buckets;
  std::vector<int> open;
  int64_t bytes = 0;
  auto close = [&] {
    if (!open.empty()) buckets.push_back(std::move(open));
    open.clear();
    bytes = 0;
  };
  for (int i : order) {
    if (!open.empty() && parameters[open.back()].scalar_type() != parameters[i].scalar_type()) close();
    open.push_back(i);
    bytes += static_cast<int64_t>(parameters[i].nbytes());
    if (bytes >= (buckets.empty() ? std::min(caps.first_bytes, caps.bytes) : caps.bytes)) close();
  }
  close();
  return buckets;
}

GradientBucket MakeBucket(const std::vector<at::Tensor>& parameters, const std::vector<int>& indices,
                          int64_t tail_elements) {
  GradientBucket bucket;
  bucket.parameters = indices;
  const at::Tensor& first = parameters[indices.front()];
  const int64_t align = 64 / static_cast<int64_t>(first.element_size());
  std::vector<int64_t> offsets;
  int64_t elements = 0;
  for (int i : indices) {
    offsets.push_back(elements);
    elements += (parameters[i].numel() + align - 1) / align * align;
  }
  bucket.flat = at::zeros({elements + tail_elements}, first.options().requires_grad(false));
  for (size_t k = 0; k < indices.size(); ++k) {
    const at::Tensor& parameter = parameters[indices[k]];
    TORCH_CHECK(parameter.is_non_overlapping_and_dense(), "parameters must be dense blocks of memory");
    bucket.views.push_back(bucket.flat.as_strided(parameter.sizes(), parameter.strides(), offsets[k]));
  }
  bucket.tail = bucket.flat.narrow(0, elements, tail_elements);
  return bucket;
}

}  // namespace scalelab::trainer
