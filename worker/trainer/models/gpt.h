// GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). A transformer of decoder blocks only
// (Vaswani et al. 2017). The names of the parameters are those of nanoGPT.
#pragma once

#include <torch/nn/modules/embedding.h>

#include "worker/trainer/models/divisible_model.h"
#include "worker/trainer/models/layers.h"

namespace scalelab::trainer {

struct GptSize {
  int layers = 0, heads = 0, width = 0, context = 0;
};
// The size of minGPT's gpt-nano, and that of the smallest model of Radford et al.
inline constexpr GptSize kGptNano{3, 3, 48, 128}, kGptSmall{12, 12, 768, 1024};

// Token and position embeddings; blocks of causal attention and a perceptron of four times the width with GELU, each after a
// layer normalization and with a residual connection; a last normalization; logits from the transposed token embeddings.
// There is no dropout. Weights are normal with deviation 0.02, those before a residual addition with 0.02 / sqrt(2 layers);
// biases are zero.
class Gpt : public DivisibleModel {
 public:
  Gpt(const GptSize& size, int vocabulary);
  // forward takes tokens [n, length], int64, of at most the context's length. It returns logits [n * length, vocabulary]:
  // those of the token that follows each position.
  at::Tensor Example() const override { return at::zeros({1, size_.context}, at::kLong); }
  // Divides layers like Shoeybi et al., "Megatron-LM" (2019), section 3: attention by heads, and the
  // perceptron by its hidden units. Embeddings and normalizations are not divided.
  std::vector<Division> Divisions() const override { return divisions_; }

 private:
  at::Tensor Embed(const at::Tensor& tokens);

  const GptSize size_;
  torch::nn::Embedding token_, position_;
  torch::nn::ModuleList layers_;
  std::vector<at::Tensor> last_norm_;  // weight, bias
  std::vector<Division> divisions_;
};

}  // namespace scalelab::trainer
