// One cycle of agreement: which tensors all ranks reduce now, and in which order.
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

// What this rank brings to a cycle.
struct CycleInput {
  std::vector<Request> fresh;  // submitted since the last cycle
  bool closed = false;         // submits nothing more in this step
  bool joined = false;         // has no more steps (and is closed)
};

// What all ranks agreed on; the same on all of them.
struct CycleResult {
  std::vector<Response> responses;  // to be reduced, in this order
  bool over = false;                // all ranks are closed: with these responses the step is complete
  bool all_joined = false;
};

// The architecture of Horovod's controller (horovod/common/controller.cc), with two differences. Its bit
// vector also says which tensors nobody has submitted and which slots are out of date, so that one AND
// all-reduce is all that a cycle of known tensors needs. And a rank may close its step: what it has not
// submitted counts as zeros, which serves ranks that have joined and parameters without a gradient alike.
//
// Tensors that the cache does not know, on any rank, are negotiated: all ranks send their requests to rank 0,
// which checks them and broadcasts what is ready. Cycle is collective and must be called by one thread.
class Controller {
 public:
  Controller(Communicator& communicator, const Options& options, Counters& counters);

  // Tensors are fused up to `fusion_bytes`, the same on all ranks.
  CycleResult Cycle(CycleInput input, int64_t fusion_bytes, Clock::time_point now);

 private:
  struct Pending {
    Request request;
    Clock::time_point since;
  };
  struct Agreement;  // of the bit vector

  void Sort(std::vector<Request> fresh, Clock::time_point now);
  Agreement AgreeOnBits(const CycleInput& input);
  std::vector<Response> Negotiate(bool closed, Clock::time_point now);
  void Inspect(Clock::time_point now);

  Communicator& communicator_;
  const Options options_;
  Counters& counters_;
  ResponseCache cache_;
  StallInspector stalls_;
  std::map<int64_t, Pending> known_;  // submitted here and in the cache, by slot
  std::vector<Request> unknown_;      // to be negotiated in this cycle
  std::set<std::string> unanswered_;  // names sent to rank 0 that it has not answered
  std::vector<bool> changed_;         // slots that this rank wants erased
  Negotiation negotiation_;           // rank 0's
  std::vector<bool> closed_ranks_;    // rank 0's view
};

}  // namespace scalelab::trainer::horovod
