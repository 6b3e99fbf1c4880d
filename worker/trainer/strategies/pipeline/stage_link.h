// Messages between neighbouring stages of a pipeline.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer::pipeline {

// What the tensors of all micro-batches have in common. The first dimension is the number of samples.
struct Layout {
  std::vector<int64_t> sizes;  // empty: not known yet
  at::ScalarType type = at::kFloat;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;

  static Layout Of(const at::Tensor& tensor);
  at::Tensor Allocate(int64_t samples, at::Device device) const;
};

// The boundary between this rank's stage and the stage before or after it: activations in one direction, their gradients in
// the other. The first activation is preceded by a message with its layout.
class StageLink {
 public:
  // `neighbour` is the rank of the other stage in `stages`, which must outlive the link. A send blocks while so many earlier
  // ones as `most_in_flight` have not ended.
  StageLink(Communicator& stages, int neighbour, at::Device device, size_t most_in_flight)
      : stages_(stages), neighbour_(neighbour), device_(device), most_in_flight_(most_in_flight) {}

  // Sends the activation of the next micro-batch to the next stage.
  void SendActivation(const at::Tensor& activation);
  // Sends the gradient of the next activation to the previous stage.
  void SendGradient(const at::Tensor& gradient);
  // Starts to receive from the other stage the next activation or gradient, of a micro-batch of so many samples. The
  // messages of one direction are received in the order in which they were sent, one at a time.
  void StartReceive(int64_t samples);
  bool receiving() const { return incoming_.work != nullptr; }
  // Blocks until it is received.
  at::Tensor Receive();
  // Blocks until all messages are sent.
  void Flush();

  int64_t bytes() const { return bytes_; }  // sent so far

 private:
  struct Message {
    at::Tensor tensor;
    std::unique_ptr<Work> work;
  };

  void Send(const at::Tensor& tensor);

  Communicator& stages_;
  const int neighbour_;
  const at::Device device_;
  const size_t most_in_flight_;
  Layout layout_;
  Message incoming_;
  std::deque<Message> outgoing_;
  int64_t bytes_ = 0;
};

}  // namespace scalelab::trainer::pipeline
