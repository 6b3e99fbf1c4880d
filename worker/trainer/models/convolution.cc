#include "worker/trainer/models/convolution.h"

#include <ATen/Parallel.h>
#include <torch/nn/functional/conv.h>

#include <algorithm>
#include <vector>

#include "worker/trainer/kernels/winograd_kernels.h"
#include "worker/trainer/models/weight_copies.h"
#include "worker/trainer/precision.h"

namespace scalelab::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

TileGrid GridOf(const at::Tensor& x) { return {x.size(0), x.size(2), x.size(3)}; }

// Returns the number of tiles whose transformed input and output fit into a core's own cache together
// with the filters.
int64_t TilesTogether(int64_t in, int64_t out) {
  constexpr int64_t kFloats = 128 << 10;
  return std::clamp<int64_t>(kFloats / (kConvPlaces * (in + out)) / kTileStep, 1, 5) * kTileStep;
}

// Calls body(thread, first tile, tiles) for pieces of at most `together` tiles; each thread gets its
// pieces in order.
template <typename Body>
void ForTiles(const TileGrid& grid, int64_t together, int64_t threads, const Body& body) {
  const int64_t pieces = (grid.tiles() + together - 1) / together;
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      for (int64_t piece = pieces * thread / threads; piece < pieces * (thread + 1) / threads; ++piece) {
        const int64_t first = piece * together;
        body(thread, first, std::min(together, grid.tiles() - first));
      }
    }
  });
}

int64_t Threads(const TileGrid& grid, int64_t together) {
  return std::clamp<int64_t>(grid.tiles() / together, 1, at::get_num_threads());
}

// Allocates memory for `threads` threads with `together` tiles each.
at::Tensor Workspace(int64_t threads, int64_t together, int64_t channels, const at::TensorOptions& options) {
  return at::empty({threads, kConvPlaces, PlaceFloats(together * channels)}, options);
}

float* Of(const at::Tensor& workspace, int64_t thread) {
  return workspace.data_ptr<float>() + thread * workspace.stride(0);
}

// Returns the convolution of x with `weight`. With `back`, x is the gradient of the output, and the result is
// the gradient of the input.
at::Tensor WinogradConvolution(const at::Tensor& x, const at::Tensor& weight, bool back) {
  const int64_t in = x.size(1), out = weight.size(back ? 1 : 0), together = TilesTogether(in, out);
  const TileGrid grid = GridOf(x);
  const at::TensorOptions options = x.options().requires_grad(false);
  const at::Tensor u = at::empty({kConvPlaces, PlaceFloats(in * out)}, options);
  const auto transform = back ? TransformFiltersBack : TransformFilters;
  // Call detach() before reading the memory of the weight. detach() is an operation, and native/zero3 gathers
  // a parameter when an operation uses it (gathered_parameters.h).
  transform(weight.detach().data_ptr<float>(), weight.size(1), weight.size(0), u.data_ptr<float>());
  at::Tensor y = at::empty({x.size(0), out, x.size(2), x.size(3)},
                           options.memory_format(at::MemoryFormat::ChannelsLast));
  const int64_t threads = Threads(grid, together);
  const at::Tensor v =
      Workspace(threads, together, in, options).zero_();  // the kernels also read tiles after the last one
  const at::Tensor m = Workspace(threads, together, out, options);
  ForTiles(grid, together, threads, [&](int64_t thread, int64_t first, int64_t count) {
    TransformInput(x.data_ptr<float>(), grid, in, first, count, together, Of(v, thread));
    MultiplyPlaces(Of(v, thread), u.data_ptr<float>(), count, together, in, out, Of(m, thread));
    TransformOutput(Of(m, thread), grid, out, first, count, together, y.data_ptr<float>());
  });
  return y;
}

// Adds the parts of the threads in order, so the result depends only on the number of threads.
at::Tensor WinogradFilterGradient(const at::Tensor& x, const at::Tensor& dy) {
  const int64_t in = x.size(1), out = dy.size(1), together = TilesTogether(in, out);
  const TileGrid grid = GridOf(x);
  const int64_t threads = Threads(grid, together);
  const at::TensorOptions options = x.options().requires_grad(false);
  const at::Tensor v = Workspace(threads, together, in, options);
  const at::Tensor m = Workspace(threads, together, out, options);
  const at::Tensor u = at::zeros({threads, kConvPlaces, PlaceFloats(in * out)}, options);
  ForTiles(grid, together, threads, [&](int64_t thread, int64_t first, int64_t count) {
    TransformInput(x.data_ptr<float>(), grid, in, first, count, together, Of(v, thread));
    TransformOutputGradient(dy.data_ptr<float>(), grid, out, first, count, together, Of(m, thread));
    AddPlaceGradients(Of(v, thread), Of(m, thread), count, together, in, out, Of(u, thread));
  });
  for (int64_t thread = 1; thread < threads; ++thread) u[0].add_(u[thread]);
  at::Tensor dw = at::empty({out, in, 3, 3}, options.memory_format(at::MemoryFormat::ChannelsLast));
  FilterGradients(u.data_ptr<float>(), in, out, dw.data_ptr<float>());
  return dw;
}

struct WinogradFunction : public torch::autograd::Function<WinogradFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return WinogradConvolution(x, weight, false);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor dy = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    return {WinogradConvolution(dy, weight, true), WinogradFilterGradient(x, dy)};
  }
};

bool IsFor(const torch::nn::Conv2dImpl& conv, const at::Tensor& x) {
  const auto are = [](const auto& pair, int64_t value) {
    return pair->at(0) == value && pair->at(1) == value;
  };
  const auto& options = conv.options;
  // No namespace before get_if: argument-dependent lookup finds c10::get_if in LibTorch 1.13 and std::get_if
  // in later versions.
  const auto* padding = get_if<torch::ExpandingArray<2>>(&options.padding());
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.dim() == 4 && x.numel() > 0 &&
         x.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         conv.weight.is_contiguous(at::MemoryFormat::ChannelsLast) && !AutocastEnabled(at::kCPU) &&
         are(options.kernel_size(), 3) && are(options.stride(), 1) && are(options.dilation(), 1) &&
         padding != nullptr && are(*padding, 1) && options.groups() == 1 && !options.bias() &&
         options.in_channels() % kConvLanes == 0 && conv.weight.size(0) % kConvLanes == 0;
}

}  // namespace

at::Tensor Convolve(torch::nn::Conv2d& conv, const at::Tensor& x) {
  if (IsFor(*conv, x)) return WinogradFunction::apply(x, conv->weight);
  const at::Tensor weight = ComputeWeight(conv->weight);
  if (weight.is_same(conv->weight)) return conv(x);
  const auto& options = conv->options;
  return torch::nn::functional::detail::conv2d(x, weight, conv->bias, options.stride(), options.padding(),
                                               options.dilation(), options.groups());
}

at::Tensor Convolve(torch::nn::Conv2d& conv, const at::Tensor& x, LayerRanks& ranks) {
  return ranks.GatherChannels(Convolve(conv, ranks.SumGradients(x)));
}

std::vector<Division> DivideChannels(const torch::nn::Module& model) {
  std::vector<Division> divisions;
  for (const auto& module : model.modules()) {
    if (const auto* conv = module->as<torch::nn::Conv2d>()) {
      divisions.push_back({.parameter = conv->weight,
                           .units = conv->options.out_channels(),
                           .unit = "output channels",
                           .equally = true});
    }
  }
  return divisions;
}

}  // namespace scalelab::trainer
