// A simulated worker: it gets runs assigned, reports the events of a rank without training, and requests
// the next run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scalelab/v1/worker.grpc.pb.h"

namespace scalelab::bench {

class SimulatedWorker {
 public:
  SimulatedWorker(std::shared_ptr<grpc::Channel> channel, std::string allocation, std::string secret,
                  int index);

  // Completes runs, each with one finish event, until the coordinator assigns no more; then calls `done`.
  // Accepts up to `queue_limit` runs in advance, as scalelab-worker does with runs of a millisecond; with 0,
  // accepts one run at a time.
  void Work(int queue_limit, std::function<void()> done);
  int completed() const { return completed_; }
  // Seconds from reporting the end of a run to the assignment of the next one.
  const std::vector<double>& assign_seconds() const { return assign_seconds_; }

  // Blocks until an attempt is assigned. Returns its token.
  std::string Attach();
  // Blocks until a ReportEvents call is answered. Returns false unless everything was accepted.
  bool Report(const v1::ReportEventsRequest& request);
  // Like Report, but asynchronous: calls `done` with the result.
  void ReportAsync(const v1::ReportEventsRequest& request, std::function<void(bool)> done);

  // Returns a context with the credentials of the allocation.
  std::unique_ptr<grpc::ClientContext> Context() const;

 private:
  void Synchronize();
  void Finish();

  std::unique_ptr<v1::WorkerService::Stub> stub_;
  const std::string allocation_, secret_;
  std::unique_ptr<grpc::ClientContext> context_;
  v1::SynchronizeRequest sync_;
  v1::SynchronizeResponse desired_;
  v1::ReportEventsRequest report_;
  v1::ReportEventsResponse reported_;
  absl::Time asked_;
  int completed_ = 0;
  std::vector<double> assign_seconds_;
  std::function<void()> done_;
};

}  // namespace scalelab::bench
