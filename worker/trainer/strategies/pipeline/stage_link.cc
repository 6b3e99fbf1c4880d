#include "worker/trainer/strategies/pipeline/stage_link.h"

#include <algorithm>
#include <utility>

namespace scalelab::trainer::pipeline {
namespace {

// The message with a layout has the element type, whether the tensor is channels last, the number of
// dimensions, and the sizes.
constexpr int64_t kMostDimensions = 5, kHeader = 3 + kMostDimensions;

at::Tensor HeaderOf(const Layout& layout) {
  TORCH_CHECK(std::ssize(layout.sizes) <= kMostDimensions, "a block's output has ", layout.sizes.size(),
              " dimensions; a pipeline sends up to ", kMostDimensions);
  const at::Tensor header = at::zeros({kHeader}, at::kLong);
  auto* numbers = static_cast<int64_t*>(header.data_ptr());
  numbers[0] = static_cast<int64_t>(layout.type);
  numbers[1] = layout.format == at::MemoryFormat::ChannelsLast ? 1 : 0;
  numbers[2] = std::ssize(layout.sizes);
  std::ranges::copy(layout.sizes, numbers + 3);
  return header;
}

Layout LayoutOf(const at::Tensor& header) {
  const auto* numbers = static_cast<const int64_t*>(header.data_ptr());
  return {.sizes = {numbers + 3, numbers + 3 + numbers[2]},
          .type = static_cast<at::ScalarType>(numbers[0]),
          .format = numbers[1] == 1 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous};
}

}  // namespace

Layout Layout::Of(const at::Tensor& tensor) {
  return {
      .sizes = tensor.sizes().vec(), .type = tensor.scalar_type(), .format = tensor.suggest_memory_format()};
}

at::Tensor Layout::Allocate(int64_t samples, at::Device device) const {
  std::vector<int64_t> shape = sizes;
  shape[0] = samples;
  return at::empty(shape, at::TensorOptions(device).dtype(type).memory_format(format));
}

void StageLink::Send(const at::Tensor& tensor) {
  while (outgoing_.size() >= most_in_flight_) {
    outgoing_.front().work->Wait();
    outgoing_.pop_front();
  }
  bytes_ += static_cast<int64_t>(tensor.nbytes());
  outgoing_.push_back({tensor, stages_.StartSend(tensor, neighbour_)});
}

void StageLink::SendActivation(const at::Tensor& activation) {
  if (layout_.sizes.empty()) {
    layout_ = Layout::Of(activation);
    Send(HeaderOf(layout_));
  }
  Send(activation.detach().contiguous(layout_.format));
}

void StageLink::SendGradient(const at::Tensor& gradient) {
  Send(gradient.to(layout_.type).contiguous(layout_.format));
}

void StageLink::StartReceive(int64_t samples) {
  if (layout_.sizes.empty()) {
    const at::Tensor header = at::zeros({kHeader}, at::kLong);
    stages_.Receive(header, neighbour_);
    layout_ = LayoutOf(header);
  }
  incoming_.tensor = layout_.Allocate(samples, device_);
  incoming_.work = stages_.StartReceive(incoming_.tensor, neighbour_);
}

at::Tensor StageLink::Receive() {
  std::exchange(incoming_.work, nullptr)->Wait();
  return std::exchange(incoming_.tensor, {});
}

void StageLink::Flush() {
  for (; !outgoing_.empty(); outgoing_.pop_front()) outgoing_.front().work->Wait();
}

}  // namespace scalelab::trainer::pipeline
