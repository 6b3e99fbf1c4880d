// An asynchronous client of WorkerService, independent of gRPC.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab::worker {

// Synchronize and ReportEvents return immediately and call `done` exactly once, on any thread, possibly
// before they return. `request` is only read during the call.
//
// Errors are those of the service (scalelab/v1/worker.proto), UNAVAILABLE or DEADLINE_EXCEEDED when the
// coordinator does not answer, and CANCELLED after a cancellation.
//
// Implementations are thread-safe.
class CoordinatorClient {
 public:
  using Synchronized = std::function<void(absl::StatusOr<v1::SynchronizeResponse>)>;
  using Reported = std::function<void(absl::StatusOr<v1::ReportEventsResponse>)>;

  virtual ~CoordinatorClient() = default;
  // Reports the node's state and waits for the desired state (WorkerService.Synchronize, a long poll).
  virtual void Synchronize(const v1::SynchronizeRequest& request, Synchronized done) = 0;
  // Cancels all Synchronize calls in flight; their callbacks get CANCELLED.
  virtual void CancelSynchronize() = 0;
  // Sends event batches; OK means that the coordinator has answered for each
  // of them (WorkerService.ReportEvents).
  virtual void ReportEvents(const v1::ReportEventsRequest& request, Reported done) = 0;
};

}  // namespace scalelab::worker
