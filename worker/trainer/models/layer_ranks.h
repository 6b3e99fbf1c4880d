// Layers whose parts are on different ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// How ranks divide a parameter. Dimension `dim` consists of `repeats` sequences of `units` units of equal size. Each rank has a
// range of units, the same in each sequence.
struct Division {
  at::Tensor parameter;
  int64_t dim = 0, repeats = 1, units = 0;
  const char* unit = "";  // what it is, for messages
  bool equally = false;   // all ranks must have the same number of units
};

// Returns the shape of the part of rank `rank` of `ranks`, for a parameter whose whole shape is `whole`.
std::vector<int64_t> PartShape(const Division& division, at::IntArrayRef whole, int rank, int ranks);
// Return views of the part of a rank, and of its place in `whole`, which have the same shape.
at::Tensor UnitsInPart(const Division& division, const at::Tensor& part, int rank, int ranks);
at::Tensor UnitsInWhole(const Division& division, const at::Tensor& whole, int rank, int ranks);
// Copies the part of a rank from `whole`, or to it. Both have the type of the parameter.
void CopyPart(const Division& division, const at::Tensor& part, const at::Tensor& whole, int rank, int ranks);
void CopyToWhole(const Division& division, const at::Tensor& whole, const at::Tensor& part, int rank,
                 int ranks);

// What a rank does at some time in a layer.
enum class LayerTime { kForward, kBackward, kCommunication };

// The ranks among which the layers of a model are divided, and their communication within forward and backward. Initially, and
// after Join, layers are whole: each of the functions below returns its argument then. Ranks must call them in the same order.
class LayerRanks {
 public:
  // Divides the layers among the ranks of `communicator`, which must outlive the use of the model. `ended` is called whenever a
  // time of this kind has ended, on the thread that runs forward or backward.
  void Divide(Communicator& communicator, std::function<void(LayerTime)> ended);
  // Makes the layers whole.
  void Join() { communicator_ = nullptr; }
  bool divided() const { return communicator_ != nullptr; }

  // Returns x, the input of a layer of which each rank computes a part of the output. Its gradient is the sum over the ranks.
  at::Tensor SumGradients(const at::Tensor& x);
  // Returns the sum of x over the ranks, each of which has a part of the layer's input. Its gradient is that of the sum.
  at::Tensor Sum(const at::Tensor& x);
  // Returns images with the channels of all ranks' x [n, channels, height, width], in rank order. All have as many channels.
  at::Tensor GatherChannels(const at::Tensor& x);

  // Returns the bytes that were passed to the communicator since the last call.
  int64_t TakeBytes() { return std::exchange(bytes_, 0); }

  // For the functions above. Each ends the time of `before` and then that of the communication.
  void AllReduce(const at::Tensor& tensor, LayerTime before);
  at::Tensor AllGather(const at::Tensor& mine, LayerTime before);
  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

 private:
  Communicator* communicator_ = nullptr;  // null: layers are whole
  std::function<void(LayerTime)> ended_;
  int64_t bytes_ = 0;
};

}  // namespace scalelab::trainer
