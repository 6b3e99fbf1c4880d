// Negotiates in each cycle which tensors all ranks reduce, and in which order.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/strategies/horovod/negotiation.h"
#include "worker/trainer/strategies/horovod/options.h"
#include "worker/trainer/strategies/horovod/response_cache.h"
#include "worker/trainer/strategies/horovod/stall_inspector.h"

namespace scalelab::trainer::horovod {

// The input of one rank to a cycle.
struct CycleInput {
  std::vector<Request> fresh;  // submitted since the last cycle
  bool closed = false;         // this rank submits nothing more in this step
  bool joined = false;         // this rank has no more steps, and has closed this one
};

// The outcome of a cycle, the same on all ranks.
struct CycleResult {
  std::vector<Response> responses;  // to be reduced in this order
  bool over = false;                // all ranks have closed the step, and these responses complete it
  bool all_joined = false;
};

// Follows the architecture of Horovod's controller (horovod/common/controller.cc), with two differences.
// First, the bit vector also marks tensors that no rank has submitted and outdated slots, so that a cycle
// of known tensors needs only one AND all-reduce. Second, a rank may close its step. Tensors that it has
// not submitted then count as zeros. This is necessary for ranks that have joined and for parameters
// without a gradient.
//
// Tensors that are missing in the cache of any rank are negotiated: all ranks send their requests to rank 0,
// which checks them and broadcasts which tensors are ready. Cycle is collective, and must always be called on
// the same thread.
class Controller {
 public:
  Controller(Communicator& communicator, const Options& options, Counters& counters);

  // Runs one cycle. Fuses tensors up to `fusion_bytes`, which must be the same on all ranks.
  CycleResult Cycle(CycleInput input, int64_t fusion_bytes, Clock::time_point now);

 private:
  struct Pending {
    Request request;
    Clock::time_point since;
  };
  struct Agreement;  // result of the bit vector

  void Sort(std::vector<Request> fresh, Clock::time_point now);
  Agreement AgreeOnBits(const CycleInput& input);
  std::vector<Response> Negotiate(bool closed, Clock::time_point now);
  void Inspect(Clock::time_point now);

  Communicator& communicator_;
  const Options options_;
  Counters& counters_;
  ResponseCache cache_;
  StallInspector stalls_;
  std::map<int64_t, Pending> known_;  // submitted tensors that are in the cache, by slot
  std::vector<Request> unknown_;      // requests to negotiate in this cycle
  std::set<std::string> unanswered_;  // names that were sent to rank 0 and not answered yet
  std::vector<bool> changed_;         // slots that this rank proposes to erase
  Negotiation negotiation_;           // used on rank 0
  std::vector<bool> closed_ranks_;    // used on rank 0
};

}  // namespace scalelab::trainer::horovod
