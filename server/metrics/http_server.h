// An HTTP server for metrics and health on a loopback address.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace scalelab::server {

struct HttpHandlers {
  std::function<std::string()> metrics;  // the body of /metrics
  std::function<std::string()> problem;  // why the service is not healthy; empty if it is
};

// Serves GET /metrics, and GET /healthz: 200 if the service is healthy, 503 with the reason if not. Has one thread, and at
// most 16 connections, each for about 30 seconds.
class HttpServer {
 public:
  // `address` is HOST:PORT with a loopback host; port 0 lets the system choose. `handlers` are called on the thread of the
  // server and must not block.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, HttpHandlers handlers);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  // Closes connections that have been open for too long, also those that send a byte now and then. Call it
  // every few seconds.
  void CloseOld();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Returns INVALID_ARGUMENT unless `address` is HOST:PORT with a loopback host.
absl::Status CheckLoopback(const std::string& address);

}  // namespace scalelab::server
