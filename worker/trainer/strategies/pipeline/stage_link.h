// Messages between neighbouring stages of a pipeline.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer::pipeline {

// The common properties of the tensors of all micro-batches. The first dimension is the number of samples.
struct Layout {
  std::vector<int64_t> sizes;  // empty: not known yet
  at::ScalarType type = at::kFloat;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;

  static Layout Of(const at::Tensor& tensor);
  at::Tensor Allocate(int64_t samples, at::Device device) const;
};

// The connection between this rank's stage and the previous or the next stage. Activations are sent in one
// direction, and their gradients in the other. A message with the layout precedes the first activation.
class StageLink {
 public:
  // `neighbour` is the rank of the other stage in `stages`, which must outlive the link. A send blocks while
  // `most_in_flight` earlier sends are in flight.
  StageLink(Communicator& stages, int neighbour, at::Device device, size_t most_in_flight)
      : stages_(stages), neighbour_(neighbour), device_(device), most_in_flight_(most_in_flight) {}

  // Sends the activation of the next micro-batch to the next stage.
  void SendActivation(const at::Tensor& activation);
  // Sends the gradient of the next activation to the previous stage.
  void SendGradient(const at::Tensor& gradient);
  // Starts to receive the next activation or gradient from the other stage, for a micro-batch of `samples`
  // samples. Messages of one direction are received one at a time, in the order in which they were sent.
  void StartReceive(int64_t samples);
  bool receiving() const { return incoming_.work != nullptr; }
  // Blocks until the message of StartReceive has arrived, and returns it.
  at::Tensor Receive();
  // Blocks until all messages are sent.
  void Flush();

  int64_t bytes() const { return bytes_; }  // number of bytes sent so far

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
