// Compares Winograd's convolution with LibTorch's in double precision.
#include "worker/trainer/models/convolution.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace scalelab::trainer {
namespace {

struct Shape {
  int64_t images, in, out, height, width;
};

torch::nn::Conv2d MakeConv(int64_t in, int64_t out, int64_t stride = 1, int64_t padding = 1) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(padding).bias(false));
  conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  return conv;
}

at::Tensor Images(int64_t n, int64_t channels, int64_t height, int64_t width) {
  return at::randn({n, channels, height, width}).contiguous(at::MemoryFormat::ChannelsLast);
}

// Returns the largest difference, relative to the largest value.
double Difference(const at::Tensor& mine, const at::Tensor& exact) {
  return ((mine.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

bool IsWinograd(const at::Tensor& y) { return y.grad_fn()->name().find("Winograd") != std::string::npos; }

class Winograd : public testing::TestWithParam<Shape> {};

TEST_P(Winograd, EqualsTheConvolutionInDoublePrecision) {
  const auto [images, in, out, height, width] = GetParam();
  at::manual_seed(3);
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    torch::nn::Conv2d conv = MakeConv(in, out);
    const at::Tensor x = Images(images, in, height, width).requires_grad_();
    const at::Tensor gradient = Images(images, out, height, width);
    const at::Tensor y = Convolve(conv, x);
    ASSERT_TRUE(IsWinograd(y));
    const auto mine = torch::autograd::grad({y}, {x, conv->weight}, {gradient});

    const at::Tensor x2 = x.detach().to(at::kDouble).requires_grad_();
    const at::Tensor w2 = conv->weight.detach().to(at::kDouble).requires_grad_();
    const at::Tensor y2 = at::conv2d(x2, w2, {}, 1, 1);
    const auto exact = torch::autograd::grad({y2}, {x2, w2}, {gradient.to(at::kDouble)});
    EXPECT_LT(Difference(y, y2), 3e-6);
    EXPECT_LT(Difference(mine[0], exact[0]), 3e-6);
    EXPECT_LT(Difference(mine[1], exact[1]), 1e-5);
    EXPECT_EQ(mine[1].strides(), conv->weight.strides());
  }
  at::set_num_threads(1);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Winograd,
    testing::Values(Shape{3, 16, 16, 32, 32}, Shape{2, 32, 64, 8, 8},
                    Shape{1, 48, 16, 7, 5},  // tiles extend past the image; an odd number of panels
                    Shape{5, 16, 48, 1, 1}, Shape{2, 16, 32, 2, 9}, Shape{33, 128, 96, 3, 3}));

TEST(Convolve, LeavesOtherConvolutionsToTheLibrary) {
  const auto plain = [](torch::nn::Conv2d conv, const at::Tensor& x) {
    const at::Tensor y = Convolve(conv, x);
    EXPECT_TRUE(at::equal(y, conv(x)));
    return !IsWinograd(y);
  };
  const at::Tensor x = Images(2, 16, 8, 8);
  EXPECT_TRUE(plain(MakeConv(16, 16, 2), x));
  EXPECT_TRUE(plain(MakeConv(16, 16, 1, 0), x));
  EXPECT_TRUE(plain(MakeConv(16, 24), x));
  EXPECT_TRUE(plain(MakeConv(3, 16), Images(2, 3, 8, 8)));
  EXPECT_TRUE(plain(MakeConv(16, 16), x.contiguous()));
  torch::nn::Conv2d biased(torch::nn::Conv2dOptions(16, 16, 3).padding(1));
  EXPECT_TRUE(plain(biased, x));
  torch::nn::Conv2d wide(torch::nn::Conv2dOptions(16, 16, 3).padding(2).dilation(2).bias(false));
  EXPECT_TRUE(plain(wide, x));
}

TEST(Convolve, IsTheSameTwice) {
  torch::nn::Conv2d conv = MakeConv(32, 32);
  const at::Tensor x = Images(9, 32, 11, 11).requires_grad_();
  const auto once = [&] {
    const at::Tensor y = Convolve(conv, x);
    return torch::autograd::grad({y.square().sum()}, {x, conv->weight});
  };
  const auto first = once(), second = once();
  EXPECT_TRUE(at::equal(first[0], second[0]));
  EXPECT_TRUE(at::equal(first[1], second[1]));
}

}  // namespace
}  // namespace scalelab::trainer
