#include "server/metrics/exporter.h"

#include "db/outbox/outbox.h"

namespace scalelab::server {

absl::StatusOr<std::unique_ptr<Exporter>> Exporter::Start(ExporterOptions options, Metrics& metrics,
                                                          Coordinator& coordinator) {
  std::unique_ptr<Exporter> exporter(new Exporter(std::move(options), metrics, coordinator));
  HttpHandlers handlers;
  handlers.metrics = [&metrics] { return metrics.Text(); };
  handlers.problem = exporter->options_.problem;
  auto server = HttpServer::Start(exporter->options_.address, std::move(handlers));
  if (!server.ok()) return server.status();
  exporter->server_ = *std::move(server);
  exporter->thread_ = std::thread([self = exporter.get()] { self->Run(); });
  return exporter;
}

Exporter::~Exporter() {
  stop_.Stop();
  if (thread_.joinable()) thread_.join();
}

void Exporter::Run() {
  do Sample();
  while (!stop_.WaitFor(options_.period));
}

void Exporter::Sample() {
  // Make one request at a time. Otherwise requests would accumulate while the core thread is blocked.
  if (!asking_->exchange(true)) {
    coordinator_.Read([&metrics = metrics_, asking = asking_](const State* state) {
      if (state != nullptr) metrics.SetState(*state);
      *asking = false;
    });
  }
  metrics_.SetDatabase(options_.database);
  metrics_.SetPools(options_.pool_queues());
  metrics_.SetConnections(options_.connections());
  metrics_.SetProblem(options_.problem());
  if (options_.store != nullptr) {
    if (const auto notices = db::CountNotices(*options_.store); notices.ok())
      metrics_.SetNotices(notices->pending, notices->given_up);
  }
  server_->CloseOld();
}

}  // namespace scalelab::server
