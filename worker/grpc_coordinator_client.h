// WorkerService over gRPC.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/coordinator_client.h"

namespace scalelab::worker {

struct CoordinatorAddress {
  // Where the coordinator may be reached ("unix:/data/scalelab.sock", "host:7410"), tried in turn; at least
  // one.
  std::vector<std::string> servers;
  std::string allocation;  // token
  std::string secret;      // of the allocation
};

// The client's destructor cancels what is under way and waits for it.
std::unique_ptr<CoordinatorClient> NewGrpcCoordinatorClient(const CoordinatorAddress& address);

}  // namespace scalelab::worker
