// The connection of a simulated worker to the coordinator.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "tests/simulation/worker.h"
#include "worker/coordinator_client.h"

namespace scalelab::simulation {

// Calls through the simulated network. The callbacks run in events of the queue while the worker's process is not stopped, and
// never after the destruction of the client, which is the end of the process.
class WorkerClient final : public worker::CoordinatorClient {
 public:
  // `worker` must outlive the client.
  explicit WorkerClient(Worker& worker) : worker_(worker) {}

  void Synchronize(const v1::SynchronizeRequest& request, Synchronized done) override;
  void CancelSynchronize() override;
  void ReportEvents(const v1::ReportEventsRequest& request, Reported done) override;

 private:
  void OnSynchronized(uint64_t number, const absl::StatusOr<v1::SynchronizeResponse>& response);
  void Learn(const Desired& desired);

  Worker& worker_;
  uint64_t number_ = 0;
  std::map<uint64_t, Synchronized> polls_;  // in flight
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace scalelab::simulation
