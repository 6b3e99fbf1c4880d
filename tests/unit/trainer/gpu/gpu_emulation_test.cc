// Executes the kernels for GPUs on the CPU (tests/fakes/cuda), and compares them with loops that have the
// same arithmetic and merge sums in the same order. All bits must be equal. gpu_kernels_test.cc compares the
// loops with LibTorch.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/fakes/host_kernels.h"

namespace scalelab::trainer {
namespace {

// An array that begins at a multiple of 64 bytes.
template <typename T>
class Array {
 public:
  explicit Array(int64_t size) : numbers_(size + 64), size_(size) {
    void* begin = numbers_.data();
    size_t space = numbers_.size() * sizeof(T);
    begin_ = static_cast<T*>(std::align(64, size * sizeof(T), begin, space));
  }
  // Normally distributed numbers.
  Array(int64_t size, float mean, float deviation) : Array(size) {
    static std::mt19937 random(1);
    std::normal_distribution<float> distribution(mean, deviation);
    for (int64_t i = 0; i < size; ++i) begin_[i] = static_cast<T>(distribution(random));
  }
  Array(const Array& other) : Array(other.size_) { std::copy_n(other.begin_, size_, begin_); }

  T* get() const { return begin_; }
  bool operator==(const Array& other) const {
    return std::memcmp(begin_, other.begin_, size_ * sizeof(T)) == 0;
  }

 private:
  std::vector<T> numbers_;
  T* begin_;
  int64_t size_;
};

template <typename T>
constexpr GpuNumber kNumber = std::is_same_v<T, float>       ? GpuNumber::kFloat
                              : std::is_same_v<T, c10::Half> ? GpuNumber::kHalf
                                                             : GpuNumber::kBFloat16;

// What a normalization writes.
template <typename T>
struct NormOutput {
  NormOutput(int64_t rows, int64_t channels)
      : y(rows * channels),
        dx(y),
        dz(y),
        positive(rows * channels / 8),
        mean(channels),
        inverse(mean),
        dweight(mean),
        dbias(mean),
        running_mean(mean),
        running_var(mean),
        workspace(GpuNormWorkspace(rows, channels)) {}
  Array<T> y, dx, dz;
  Array<uint8_t> positive;
  Array<float> mean, inverse, dweight, dbias, running_mean, running_var, workspace;
};

template <typename T>
void CompareNorms(int64_t rows, int64_t channels, bool batch_statistics, bool relu, bool residual) {
  SCOPED_TRACE(testing::Message() << rows << " x " << channels << ", options " << batch_statistics << relu
                                  << residual);
  const Array<T> x(rows * channels, 10, 3), other(rows * channels, 0, 1), dy(rows * channels, 0, 1);
  const Array<float> weight(channels, 1, 0.2f), bias(channels, 0, 1);
  const auto run = [&](const auto& forward, const auto& backward) {
    NormOutput<T> out(rows, channels);
    std::fill_n(out.running_mean.get(), channels, 9.0f);
    std::fill_n(out.running_var.get(), channels, 2.0f);
    forward(GpuNormForwardArrays{.type = kNumber<T>,
                                 .rows = rows,
                                 .channels = channels,
                                 .x = x.get(),
                                 .residual = residual ? other.get() : nullptr,
                                 .weight = weight.get(),
                                 .bias = bias.get(),
                                 .running_mean = out.running_mean.get(),
                                 .running_var = out.running_var.get(),
                                 .batch_statistics = batch_statistics,
                                 .relu = relu,
                                 .workspace = out.workspace.get(),
                                 .y = out.y.get(),
                                 .mean = out.mean.get(),
                                 .inverse = out.inverse.get(),
                                 .positive = relu ? out.positive.get() : nullptr},
            nullptr);
    backward(GpuNormBackwardArrays{.type = kNumber<T>,
                                   .rows = rows,
                                   .channels = channels,
                                   .x = x.get(),
                                   .dy = dy.get(),
                                   .positive = relu ? out.positive.get() : nullptr,
                                   .weight = weight.get(),
                                   .mean = out.mean.get(),
                                   .inverse = out.inverse.get(),
                                   .batch_statistics = batch_statistics,
                                   .workspace = out.workspace.get(),
                                   .dx = out.dx.get(),
                                   .dz = residual && relu ? out.dz.get() : nullptr,
                                   .dweight = out.dweight.get(),
                                   .dbias = out.dbias.get()},
             nullptr);
    return out;
  };
  const NormOutput<T> actual = run(GpuNormForward, GpuNormBackward),
                      expected = run(HostNormForward, HostNormBackward);
  EXPECT_TRUE(actual.mean == expected.mean);
  EXPECT_TRUE(actual.inverse == expected.inverse);
  EXPECT_TRUE(actual.running_mean == expected.running_mean);
  EXPECT_TRUE(actual.running_var == expected.running_var);
  EXPECT_TRUE(actual.y == expected.y);
  EXPECT_TRUE(actual.positive == expected.positive);
  EXPECT_TRUE(actual.dweight == expected.dweight);
  EXPECT_TRUE(actual.dbias == expected.dbias);
  EXPECT_TRUE(actual.dx == expected.dx);
  EXPECT_TRUE(actual.dz == expected.dz);
}

TEST(GpuEmulation, OfNormalizationComputesTheBitsOfTheLoops) {
  for (int options = 0; options < 8; ++options) {
    CompareNorms<float>(315, 24, (options & 1) != 0, (options & 2) != 0, (options & 4) != 0);
  }
  CompareNorms<float>(9216, 8, true, true, true);  // several parts of the rows
  CompareNorms<c10::BFloat16>(9000, 16, true, true, true);
  CompareNorms<c10::BFloat16>(30, 264, true, true, false);  // several tiles of the channels
  CompareNorms<c10::Half>(1100, 64, true, true, true);
  CompareNorms<c10::Half>(1, 16, false, true, false);
}

// The parameters need several launches, and some begin at odd addresses.
template <typename T>
void CompareSteps(float momentum, float left_out) {
  struct State {
    std::vector<Array<float>> p, v;
    std::vector<Array<T>> copies;
  };
  State actual;
  std::vector<Array<float>> gradients;
  for (int i = 0; i < 100; ++i) {
    const int64_t size = i % 13 == 0 ? 9001 + i : 2 + 7 * i;
    actual.p.emplace_back(size, 0.0f, 1.0f), actual.v.emplace_back(size, 0.0f, 1.0f);
    actual.copies.emplace_back(size, 0.0f, 1.0f), gradients.emplace_back(size, 0.0f, 1.0f);
  }
  State expected = actual;
  const float rate = 0.1f;
  const auto step = [&](State& state, const auto& kernel) {
    std::vector<GpuSgdTensor> tensors;
    for (int i = 0; i < 100; ++i) {
      const int64_t size = i % 13 == 0 ? 9001 + i : 2 + 7 * i, skipped = i % 3 == 1 ? 1 : 0;
      tensors.push_back({.p = state.p[i].get() + skipped,
                         .v = state.v[i].get() + skipped,
                         .g = gradients[i].get() + skipped,
                         .copy = i % 5 == 0 ? nullptr : state.copies[i].get() + skipped,
                         .n = size - skipped,
                         .decay = i % 2 == 0 ? 0.01f : 0});
    }
    kernel(tensors.data(), std::ssize(tensors),
           GpuSgdOptions{.momentum = momentum, .rate = &rate, .left_out = &left_out, .copies = kNumber<T>},
           nullptr);
  };
  step(actual, GpuSgd), step(expected, HostSgd);
  EXPECT_TRUE(actual.p == expected.p);
  EXPECT_TRUE(actual.v == expected.v);
  EXPECT_TRUE(actual.copies == expected.copies);
}

TEST(GpuEmulation, OfSgdComputesTheBitsOfTheLoops) {
  CompareSteps<c10::BFloat16>(0.9f, 0);
  CompareSteps<c10::Half>(0, 0);
  CompareSteps<float>(0.9f, 1);
}

template <typename T>
void CompareImages(int side, bool interleaved, bool channels_last) {
  const int64_t count = 3, size = count * 3 * side * side;
  Array<uint8_t> bytes(size);
  for (int64_t i = 0; i < size; ++i) bytes.get()[i] = static_cast<uint8_t>(i * 37 + i / 256);
  const GpuCrop crops[] = {{0, 8, 1}, {}, {7, 2, 0}};
  const Array<T> actual(size), expected(size);
  GpuImageArrays arrays{.count = count,
                        .side = side,
                        .bytes = bytes.get(),
                        .interleaved = interleaved,
                        .crops = crops,
                        .mean = {0.4f, 0.5f, 0.6f},
                        .deviation = {0.2f, 0.3f, 0.25f},
                        .type = kNumber<T>,
                        .out = actual.get(),
                        .channels_last = channels_last};
  GpuImages(arrays, nullptr);
  arrays.out = expected.get();
  HostImages(arrays, nullptr);
  EXPECT_TRUE(actual == expected) << side << interleaved << channels_last;
}

TEST(GpuEmulation, OfImagesComputesTheBitsOfTheLoops) {
  for (const int side : {8, 33}) {
    for (const bool channels_last : {false, true}) {
      CompareImages<float>(side, false, channels_last);
      CompareImages<c10::BFloat16>(side, true, channels_last);
    }
  }
}

}  // namespace
}  // namespace scalelab::trainer
