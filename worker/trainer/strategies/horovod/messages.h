// What ranks tell each other about tensors, and its bytes on the wire.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer::horovod {

// "This rank has the tensor": its name, and what must be the same on all ranks.
struct Request {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;

  int64_t elements() const;
  int64_t bytes() const { return elements() * static_cast<int64_t>(c10::elementSize(type)); }
  bool operator==(const Request&) const = default;
};

// What a rank sends to rank 0. A closed rank submits nothing more in this step: it counts as zeros in what
// the others submit.
struct RequestList {
  bool closed = false;
  std::vector<Request> requests;
  bool operator==(const RequestList&) const = default;
};

// "All ranks have these tensors": they are reduced together, in this order. Or a sentence that says why they
// cannot be.
struct Response {
  std::vector<Request> tensors;
  std::string error;
  bool operator==(const Response&) const = default;
};

std::string Encode(const RequestList& list);
std::string Encode(const std::vector<Response>& responses);
// Throw TrainerError (communication) for bytes that no rank of this version sends.
RequestList DecodeRequests(std::string_view bytes);
std::vector<Response> DecodeResponses(std::string_view bytes);

}  // namespace scalelab::trainer::horovod
