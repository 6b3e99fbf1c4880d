// The worker's side of WorkerService, without gRPC.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab::worker {

// Both calls return at once and call back exactly once, from any thread, possibly before they return. Errors
// are those of the service, UNAVAILABLE or DEADLINE_EXCEEDED when it is not heard of, CANCELLED.
class CoordinatorClient {
 public:
  using Synchronized = std::function<void(absl::StatusOr<v1::SynchronizeResponse>)>;
  using Reported = std::function<void(absl::StatusOr<v1::ReportEventsResponse>)>;

  virtual ~CoordinatorClient() = default;
  virtual void Synchronize(const v1::SynchronizeRequest& request, Synchronized done) = 0;
  // Gives up the Synchronize calls under way.
  virtual void CancelSynchronize() = 0;
  virtual void ReportEvents(const v1::ReportEventsRequest& request, Reported done) = 0;
};

}  // namespace scalelab::worker
