// Serves the metrics: samples the values that no other part reports, and runs the HTTP server.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/coordinator.h"
#include "server/metrics/http_server.h"
#include "server/metrics/metrics.h"
#include "server/time/stop_signal.h"

namespace scalelab::server {

struct ExporterOptions {
  std::string address;                                                       // see HttpServer
  std::string database;                                                      // path
  std::function<std::string()> problem;                                      // as in HttpHandlers
  std::function<std::vector<std::pair<std::string, size_t>>()> pool_queues;  // lengths by name
  // Returns the number of open connections.
  std::function<int()> connections;
  db::Store* store = nullptr;                // null: without notifications
  absl::Duration period = absl::Seconds(5);  // between two samples
};

// Runs from Start to the destructor. A scrape never waits for the core thread: it gets the numbers of the last sample.
class Exporter {
 public:
  // `metrics` must outlive the coordinator, which may answer the last request after the exporter has ended.
  // The coordinator must outlive the exporter.
  static absl::StatusOr<std::unique_ptr<Exporter>> Start(ExporterOptions options, Metrics& metrics,
                                                         Coordinator& coordinator);
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;
  int port() const { return server_->port(); }

 private:
  Exporter(ExporterOptions options, Metrics& metrics, Coordinator& coordinator)
      : options_(std::move(options)), metrics_(metrics), coordinator_(coordinator) {}
  void Run();
  void Sample();

  const ExporterOptions options_;
  Metrics& metrics_;
  Coordinator& coordinator_;
  std::unique_ptr<HttpServer> server_;
  std::shared_ptr<std::atomic<bool>> asking_ =
      std::make_shared<std::atomic<bool>>(false);  // whether a request to the core thread is in flight
  StopSignal stop_;
  std::thread thread_;
};

}  // namespace scalelab::server
