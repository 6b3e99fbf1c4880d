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

BlockLayout LayOut(const std::vector<at::Tensor>& parameters, const std::vector<int>& indices) {
  BlockLayout layout;
  layout.align = 64 / static_cast<int64_t>(parameters[indices.front()].element_size());
  for (int i : indices) {
    TORCH_CHECK(parameters[i].is_non_overlapping_and_dense(), "parameters must be dense blocks of memory");
    layout.offsets.push_back(layout.elements);
    layout.elements += (parameters[i].numel() + layout.align - 1) / layout.align * layout.align;
  }
  return layout;
}

GradientBucket MakeBucket(const std::vector<at::Tensor>& parameters, const std::vector<int>& indices,
                          int64_t tail_elements) {
  GradientBucket bucket;
  bucket.parameters = indices;
  const BlockLayout layout = LayOut(parameters, indices);
  bucket.flat = at::zeros({layout.elements + tail_elements},
                          parameters[indices.front()].options().requires_grad(false));
  for (size_t k = 0; k < indices.size(); ++k) {
    const at::Tensor& parameter = parameters[indices[k]];
    bucket.views.push_back(bucket.flat.as_strided(parameter.sizes(), parameter.strides(), layout.offsets[k]));
  }
  bucket.tail = bucket.flat.narrow(0, layout.elements, tail_elements);
  return bucket;
}

}  // namespace scalelab::trainer
