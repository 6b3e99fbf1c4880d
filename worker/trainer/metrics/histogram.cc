#include "worker/trainer/metrics/histogram.h"

#include <algorithm>
#include <numeric>

namespace scalelab::trainer {
namespace {

constexpr int64_t kFirstBin = 3;  // its position in a state

}  // namespace

void Histogram::Add(int64_t number) {
  sum_ += static_cast<double>(number);
  ++count_;
  most_ = std::max(most_, number);
  ++bins_[std::min(number, kBins - 1)];
}

int64_t Histogram::Percentile(int percent) const {
  const int64_t all = std::accumulate(bins_.begin(), bins_.end(), int64_t{0});
  int64_t up_to = 0;
  for (int64_t number = 0; number < kBins; ++number) {
    up_to += bins_[number];
    if (up_to > 0 && up_to * 100 >= all * percent) return number;
  }
  return 0;
}

at::Tensor Histogram::State() const {
  const at::Tensor state = at::empty({kFirstBin + kBins}, at::kDouble);
  auto* const numbers = static_cast<double*>(state.data_ptr());
  numbers[0] = sum_;
  numbers[1] = static_cast<double>(count_);
  numbers[kMost] = static_cast<double>(most_);
  std::ranges::copy(bins_, numbers + kFirstBin);
  return state;
}

void Histogram::AddState(const at::Tensor& state) {
  const auto* const numbers = static_cast<const double*>(state.data_ptr());
  sum_ += numbers[0];
  count_ += static_cast<int64_t>(numbers[1]);
  most_ = std::max(most_, static_cast<int64_t>(numbers[kMost]));
  if (state.numel() < kFirstBin + kBins) return;
  for (int64_t bin = 0; bin < kBins; ++bin) bins_[bin] += static_cast<int64_t>(numbers[kFirstBin + bin]);
}

}  // namespace scalelab::trainer
