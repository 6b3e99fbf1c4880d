// A worker that trains nothing: it is assigned runs, reports what a rank would, and asks for the next.
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

  // Completes runs, each with one finish event, until the coordinator has no more; then calls `done`.
  void Work(std::function<void()> done);
  int completed() const { return completed_; }
  // Seconds from saying that a run ended to hearing of the next one.
  const std::vector<double>& assign_seconds() const { return assign_seconds_; }

  // Blocking: the next assigned attempt's token.
  std::string Attach();
  // Blocking: one ReportEvents; false when not everything was accepted.
  bool Report(const v1::ReportEventsRequest& request);
  // As Report, calling `done` when answered.
  void ReportAsync(const v1::ReportEventsRequest& request, std::function<void(bool)> done);

 private:
  std::unique_ptr<grpc::ClientContext> Context() const;
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
