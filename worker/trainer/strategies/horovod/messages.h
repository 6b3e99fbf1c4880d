// Messages between ranks about tensors, and their encoding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer::horovod {

// A tensor that a rank has submitted: its name, and the properties that must be the same on all ranks.
struct Request {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;

  int64_t elements() const;
  int64_t bytes() const { return elements() * static_cast<int64_t>(c10::elementSize(type)); }
  bool operator==(const Request&) const = default;
};

// The message of a rank to rank 0. A closed rank submits nothing more in this step. For tensors that other
// ranks submit, it contributes zeros.
struct RequestList {
  bool closed = false;
  std::vector<Request> requests;
  bool operator==(const RequestList&) const = default;
};

// Tensors that all ranks have submitted; they are reduced together, in this order. `error` is not empty if
// they cannot be reduced.
struct Response {
  std::vector<Request> tensors;
  std::string error;
  bool operator==(const Response&) const = default;
};

std::string Encode(const RequestList& list);
std::string Encode(const std::vector<Response>& responses);
// Decode messages. Throw TrainerError (communication) for bytes that are not a message of this version.
RequestList DecodeRequests(std::string_view bytes);
std::vector<Response> DecodeResponses(std::string_view bytes);

}  // namespace scalelab::trainer::horovod
