#include "worker/trainer/models/gpt.h"

#include <cmath>

#include "worker/trainer/compat.h"

namespace scalelab::trainer {
namespace {

using namespace torch::nn;  // NOLINT: a network is a list of its layers

constexpr double kDeviation = 0.02, kNormEpsilon = 1e-5;

// Layer normalization over the last dimension.
class NormImpl : public Module {
 public:
  explicit NormImpl(int64_t width)
      : weight_(register_parameter("weight", at::ones({width}))),
        bias_(register_parameter("bias", at::zeros({width}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::layer_norm(x, {x.size(-1)}, weight_, bias_, kNormEpsilon);
  }

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(Norm);

Linear MakeLinear(int64_t in, int64_t out, double deviation) {
  Linear linear(in, out);
  init::normal_(linear->weight, 0, deviation);
  init::zeros_(linear->bias);
  return linear;
}

// Returns softmax(q k' / sqrt(d)) v, where the softmax of each position ignores all later positions. All
// tensors are [n, heads, length, d].
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
#if SCALELAB_TORCH_AT_LEAST(2, 1)
  if (q.is_cuda()) return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
#endif
  const at::Tensor later =
      at::ones({q.size(2), q.size(2)}, at::TensorOptions(q.device()).dtype(at::kBool)).triu(/*diagonal=*/1);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  return at::matmul(scores.masked_fill(later, -INFINITY).softmax(-1), v);
}

// Returns linear(x). If the model is divided, each rank has a part of the last dimension of x and the same
// part of the weight's columns; the ranks sum their products.
at::Tensor SumOfColumns(Linear& linear, const at::Tensor& x, LayerRanks& ranks) {
  if (!ranks.divided()) return linear->forward(x);
  return ranks.Sum(at::linear(x, linear->weight)) + linear->bias;
}

// Appends the divisions of two layers. The outputs of `first` are `repeats` sequences of units; the inputs of
// `second` are one such sequence.
void AppendDivisions(const Linear& first, int64_t repeats, const Linear& second, int64_t units,
                     const char* unit, std::vector<Division>& divisions) {
  for (const at::Tensor& parameter : {first->weight, first->bias})
    divisions.push_back({.parameter = parameter, .repeats = repeats, .units = units, .unit = unit});
  divisions.push_back({.parameter = second->weight, .dim = 1, .units = units, .unit = unit});
}

class AttentionImpl : public Module {
 public:
  AttentionImpl(const GptSize& size, LayerRanks& ranks)
      : heads_(size.heads),
        ranks_(ranks),
        c_attn_(register_module("c_attn", MakeLinear(size.width, 3 * size.width, kDeviation))),
        c_proj_(register_module(
            "c_proj", MakeLinear(size.width, size.width, kDeviation / std::sqrt(2.0 * size.layers)))) {}
  at::Tensor forward(const at::Tensor& x) {
    const int64_t n = x.size(0), length = x.size(1), width = x.size(2) / heads_;
    // Splits [n, length, 3, heads, width of a head] into three tensors [n, heads, length, width of a head].
    // `heads` are the heads of this rank.
    const std::vector<at::Tensor> parts = c_attn_->forward(ranks_.SumGradients(x))
                                              .view({n, length, 3, -1, width})
                                              .permute({2, 0, 3, 1, 4})
                                              .unbind(0);
    const at::Tensor seen = CausalAttention(parts[0], parts[1], parts[2]);
    return SumOfColumns(c_proj_, seen.transpose(1, 2).reshape({n, length, -1}), ranks_);
  }
  void AppendTo(std::vector<Division>& divisions) const {
    AppendDivisions(c_attn_, 3, c_proj_, heads_, "heads", divisions);
  }

 private:
  const int64_t heads_;
  LayerRanks& ranks_;
  Linear c_attn_, c_proj_;
};
TORCH_MODULE(Attention);

class PerceptronImpl : public Module {
 public:
  PerceptronImpl(const GptSize& size, LayerRanks& ranks)
      : ranks_(ranks),
        c_fc_(register_module("c_fc", MakeLinear(size.width, 4 * size.width, kDeviation))),
        c_proj_(register_module(
            "c_proj", MakeLinear(4 * size.width, size.width, kDeviation / std::sqrt(2.0 * size.layers)))) {}
  at::Tensor forward(const at::Tensor& x) {
    return SumOfColumns(c_proj_, at::gelu(c_fc_->forward(ranks_.SumGradients(x)), "tanh"), ranks_);
  }
  void AppendTo(std::vector<Division>& divisions) const {
    AppendDivisions(c_fc_, 1, c_proj_, c_fc_->options.out_features(), "hidden units", divisions);
  }

 private:
  LayerRanks& ranks_;
  Linear c_fc_, c_proj_;
};
TORCH_MODULE(Perceptron);

class BlockImpl : public Module {
 public:
  BlockImpl(const GptSize& size, LayerRanks& ranks)
      : ln_1_(register_module("ln_1", Norm(size.width))),
        attn_(register_module("attn", Attention(size, ranks))),
        ln_2_(register_module("ln_2", Norm(size.width))),
        mlp_(register_module("mlp", Perceptron(size, ranks))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + attn_->forward(ln_1_->forward(x));
    return y + mlp_->forward(ln_2_->forward(y));
  }
  void AppendTo(std::vector<Division>& divisions) const {
    attn_->AppendTo(divisions);
    mlp_->AppendTo(divisions);
  }

 private:
  Norm ln_1_;
  Attention attn_;
  Norm ln_2_;
  Perceptron mlp_;
};

}  // namespace

Gpt::Gpt(const GptSize& size, int vocabulary)
    : size_(size),
      token_(register_module("wte", Embedding(vocabulary, size.width))),
      position_(register_module("wpe", Embedding(size.context, size.width))) {
  init::normal_(token_->weight, 0, kDeviation);
  init::normal_(position_->weight, 0, kDeviation);
  AddBlock({token_.ptr(), position_.ptr()}, [this](const at::Tensor& tokens) { return Embed(tokens); });
  for (int layer = 0; layer < size.layers; ++layer) {
    const auto block = std::make_shared<BlockImpl>(size, layer_ranks());
    layers_->push_back(block);
    block->AppendTo(divisions_);
    AddBlock({block}, [block = block.get()](const at::Tensor& x) { return block->forward(x); });
  }
  register_module("h", layers_);
  const auto norm = register_module("ln_f", Norm(size.width));
  last_norm_ = norm->parameters();
  AddBlock({norm, token_.ptr()}, [this](const at::Tensor& x) {
    const at::Tensor y = at::layer_norm(x, {size_.width}, last_norm_[0], last_norm_[1], kNormEpsilon);
    return at::linear(y, token_->weight).flatten(0, 1);
  });
}

at::Tensor Gpt::Embed(const at::Tensor& tokens) {
  const int64_t length = tokens.size(1);
  TORCH_CHECK(length <= size_.context, "a sample has ", length, " tokens, the model takes up to ",
              size_.context);
  return token_->forward(tokens) + position_->weight.narrow(0, 0, length);
}

}  // namespace scalelab::trainer
