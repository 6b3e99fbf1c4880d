// Models whose layers can be divided among ranks.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "worker/trainer/models/layer_ranks.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

// A network that is a sequence of blocks. Constructors add them in the order in which forward runs them. Its blocks can be on
// different ranks, and so can the parts of its layers.
class DivisibleModel : public Model {
 public:
  // A part of the network with one input and one output, whose first dimension is the sample. The last block
  // returns the logits.
  struct Block {
    std::vector<std::shared_ptr<torch::nn::Module>> modules;  // used by this block and maybe by others
    std::function<at::Tensor(const at::Tensor& input)> forward;
  };

  // The blocks refer to the model and must not outlive it.
  const std::vector<Block>& blocks() const { return blocks_; }
  // Returns an input for one sample, which consists of zeros.
  virtual at::Tensor Example() const = 0;
  // Returns the parameters that ranks can divide. While layer_ranks() is divided, each parameter must contain
  // only this rank's part.
  virtual std::vector<Division> Divisions() const = 0;
  LayerRanks& layer_ranks() { return layer_ranks_; }

  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const Block& block : blocks_) x = block.forward(x);
    return x;
  }

 protected:
  void AddBlock(std::vector<std::shared_ptr<torch::nn::Module>> modules,
                std::function<at::Tensor(const at::Tensor& input)> forward) {
    blocks_.push_back({std::move(modules), std::move(forward)});
  }

 private:
  std::vector<Block> blocks_;
  LayerRanks layer_ranks_;
};

}  // namespace scalelab::trainer
