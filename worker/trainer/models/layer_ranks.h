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
  const char* unit = "";  // name of the units, for error messages
  bool equally = false;   // all ranks must have the same number of units
};

// Returns the shape of the part of rank `rank` of `ranks`, for a parameter whose whole shape is `whole`.
std::vector<int64_t> PartShape(const Division& division, at::IntArrayRef whole, int rank, int ranks);
// Return two views of the same shape: of `part`, which is the part of a rank, and of the elements of this
// part in `whole`.
at::Tensor UnitsInPart(const Division& division, const at::Tensor& part, int rank, int ranks);
at::Tensor UnitsInWhole(const Division& division, const at::Tensor& whole, int rank, int ranks);
// Copy the part of a rank from `whole` to `part`, or from `part` to `whole`. Both tensors must have the type
// of the parameter.
void CopyPart(const Division& division, const at::Tensor& part, const at::Tensor& whole, int rank, int ranks);
void CopyToWhole(const Division& division, const at::Tensor& whole, const at::Tensor& part, int rank,
                 int ranks);

// The activities of a rank whose times are measured.
enum class LayerTime { kForward, kBackward, kCommunication };

// The ranks among which the layers of a model are divided, and their communication within forward and
// backward. Initially, and after Join, layers are not divided; then SumGradients, Sum and GatherChannels
// return their argument. Ranks must call these functions in the same order.
class LayerRanks {
 public:
  // Divides the layers among the ranks of `communicator`, which must outlive the use of the model. `ended` is
  // called at the end of each activity, on the thread that runs forward or backward.
  void Divide(Communicator& communicator, std::function<void(LayerTime)> ended);
  // Ends the division of the layers.
  void Join() { communicator_ = nullptr; }
  bool divided() const { return communicator_ != nullptr; }

  // Returns x, which is the input of a layer. Each rank computes a part of the layer's output. The gradient
  // of x is the sum over the ranks.
  at::Tensor SumGradients(const at::Tensor& x);
  // Returns the sum of x over the ranks, where x is the output of a layer for this rank's part of the input.
  // The gradient of x is the gradient of the sum.
  at::Tensor Sum(const at::Tensor& x);
  // Returns the concatenation of the channels of all ranks' x [n, channels, height, width] in rank order. All
  // ranks must have the same number of channels.
  at::Tensor GatherChannels(const at::Tensor& x);

  // Returns the bytes that were passed to the communicator since the last call.
  int64_t TakeBytes() { return std::exchange(bytes_, 0); }

  // SumGradients, Sum and GatherChannels use these two functions. Each calls `ended` with `before`,
  // communicates, and calls `ended` with kCommunication.
  void AllReduce(const at::Tensor& tensor, LayerTime before);
  at::Tensor AllGather(const at::Tensor& mine, LayerTime before);
  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

 private:
  Communicator* communicator_ = nullptr;  // null: layers are not divided
  std::function<void(LayerTime)> ended_;
  int64_t bytes_ = 0;
};

}  // namespace scalelab::trainer
