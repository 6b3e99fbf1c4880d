// A CoordinatorClient over gRPC.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/coordinator_client.h"

namespace scalelab::worker {

struct CoordinatorAddress {
  // Addresses of the coordinator ("unix:/data/scalelab.sock"; "host:7410" with TLS; "insecure:host:7410" without); at least
  // one. A call uses the current address; UNAVAILABLE makes the next call use the next one.
  std::vector<std::string> servers;
  std::string allocation;        // token
  std::string secret;            // secret of the allocation, sent as a bearer token
  std::string certificate = {};  // certificate that TLS trusts, PEM; empty: the authorities of the system
};

// Returns INVALID_ARGUMENT if the certificate cannot be used. The client's destructor cancels all calls in flight and waits for their callbacks.
//
// A call ends with DEADLINE_EXCEEDED after `deadline` of the steady clock. The coordinator answers Synchronize within 10 s.
// If the calls to an address fail, and none was answered for half of `deadline`, the next call uses a new connection. So the
// client reaches the coordinator even if gRPC's timers have stopped, because the wall clock was set back.
absl::StatusOr<std::unique_ptr<CoordinatorClient>> NewGrpcCoordinatorClient(
    const CoordinatorAddress& address, absl::Duration deadline = absl::Seconds(20));

}  // namespace scalelab::worker
