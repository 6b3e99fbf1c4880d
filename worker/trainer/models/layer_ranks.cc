#include "worker/trainer/models/layer_ranks.h"

namespace scalelab::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t FirstUnit(const Division& division, int rank, int ranks) { return division.units * rank / ranks; }

// Returns a view of `tensor` in which two dimensions, [repeats, units], precede dimension `dim`. `units` is
// the number of units that the tensor contains.
at::Tensor UnitsOf(const Division& division, const at::Tensor& tensor, int64_t units) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[division.dim] /= division.repeats * units;
  sizes.insert(sizes.begin() + division.dim, {division.repeats, units});
  return tensor.view(sizes);
}

int64_t AddressOf(LayerRanks& ranks) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(&ranks)); }
LayerRanks& At(int64_t address) { return *reinterpret_cast<LayerRanks*>(address); }

struct SumGradientsFunction : public torch::autograd::Function<SumGradientsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t ranks) {
    context->saved_data["ranks"] = ranks;
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    at::Tensor sum = gradients[0].clone();
    At(context->saved_data["ranks"].toInt()).AllReduce(sum, LayerTime::kBackward);
    return {sum, at::Tensor()};
  }
};

struct SumFunction : public torch::autograd::Function<SumFunction> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, int64_t ranks) {
    at::Tensor sum = x.clone();
    At(ranks).AllReduce(sum, LayerTime::kForward);
    return sum;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

struct GatherChannelsFunction : public torch::autograd::Function<GatherChannelsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t address) {
    LayerRanks& ranks = At(address);
    const int64_t n = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3),
                  size = ranks.size();
    context->saved_data["first"] = ranks.rank() * channels;
    context->saved_data["channels"] = channels;
    if (x.suggest_memory_format() == at::MemoryFormat::ChannelsLast) {
      const at::Tensor all =
          ranks.AllGather(x.permute({0, 2, 3, 1}).contiguous().view(-1), LayerTime::kForward);
      return all.view({size, n, height, width, channels})
          .permute({1, 2, 3, 0, 4})
          .reshape({n, height, width, size * channels})
          .permute({0, 3, 1, 2});
    }
    const at::Tensor all = ranks.AllGather(x.contiguous().view(-1), LayerTime::kForward);
    return all.view({size, n, channels, height, width})
        .transpose(0, 1)
        .reshape({n, size * channels, height, width});
  }
  // No communication is necessary, because the gradient of the output is the same on all ranks.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {
        gradients[0].narrow(1, context->saved_data["first"].toInt(), context->saved_data["channels"].toInt()),
        at::Tensor()};
  }
};

}  // namespace

std::vector<int64_t> PartShape(const Division& division, at::IntArrayRef whole, int rank, int ranks) {
  std::vector<int64_t> shape = whole.vec();
  shape[division.dim] = shape[division.dim] / division.units *
                        (FirstUnit(division, rank + 1, ranks) - FirstUnit(division, rank, ranks));
  return shape;
}

at::Tensor UnitsInPart(const Division& division, const at::Tensor& part, int rank, int ranks) {
  return UnitsOf(division, part, FirstUnit(division, rank + 1, ranks) - FirstUnit(division, rank, ranks));
}

at::Tensor UnitsInWhole(const Division& division, const at::Tensor& whole, int rank, int ranks) {
  const int64_t first = FirstUnit(division, rank, ranks);
  return UnitsOf(division, whole, division.units)
      .narrow(division.dim + 1, first, FirstUnit(division, rank + 1, ranks) - first);
}

void CopyPart(const Division& division, const at::Tensor& part, const at::Tensor& whole, int rank,
              int ranks) {
  UnitsInPart(division, part, rank, ranks).copy_(UnitsInWhole(division, whole, rank, ranks));
}

void CopyToWhole(const Division& division, const at::Tensor& whole, const at::Tensor& part, int rank,
                 int ranks) {
  UnitsInWhole(division, whole, rank, ranks).copy_(UnitsInPart(division, part, rank, ranks));
}

void LayerRanks::Divide(Communicator& communicator, std::function<void(LayerTime)> ended) {
  communicator_ = &communicator;
  ended_ = std::move(ended);
}

at::Tensor LayerRanks::SumGradients(const at::Tensor& x) {
  return divided() ? SumGradientsFunction::apply(x, AddressOf(*this)) : x;
}

at::Tensor LayerRanks::Sum(const at::Tensor& x) {
  return divided() ? SumFunction::apply(x, AddressOf(*this)) : x;
}

at::Tensor LayerRanks::GatherChannels(const at::Tensor& x) {
  return divided() ? GatherChannelsFunction::apply(x, AddressOf(*this)) : x;
}

void LayerRanks::AllReduce(const at::Tensor& tensor, LayerTime before) {
  ended_(before);
  communicator_->AllReduce(tensor, ReduceOp::kSum);
  bytes_ += static_cast<int64_t>(tensor.nbytes());
  ended_(LayerTime::kCommunication);
}

at::Tensor LayerRanks::AllGather(const at::Tensor& mine, LayerTime before) {
  ended_(before);
  at::Tensor all = at::empty({mine.numel() * size()}, mine.options().requires_grad(false));
  communicator_->AllGatherInto(all, mine);
  bytes_ += static_cast<int64_t>(all.nbytes());
  ended_(LayerTime::kCommunication);
  return all;
}

}  // namespace scalelab::trainer
