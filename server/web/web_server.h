// The dashboard: an HTTP server for browsers.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "server/identity/authenticator.h"
#include "server/web/connection.h"

namespace scalelab::server {

struct WebOptions {
  std::string address;  // HOST:PORT with a loopback host; port 0 lets the system choose
  // Address of the dashboard behind a reverse proxy, see SitePolicy; empty without a proxy.
  std::string url;
  std::string key;                         // the secret of this server
  std::shared_ptr<grpc::Channel> channel;  // to the services of this process
  Authenticator* identities = nullptr;     // must outlive the server
  int connections = 1024;                  // a further connection is closed at once
  HttpLimits limits;
};

class WebServer {
 public:
  // Returns an error that names the address if it cannot be served.
  static absl::StatusOr<std::unique_ptr<WebServer>> Start(WebOptions options);
  // Ends all connections and calls.
  ~WebServer();
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  // Returns the address that browsers use, "http://127.0.0.1:8080/".
  const std::string& url() const;
  int port() const;  // of the listening socket

 private:
  struct Impl;
  explicit WebServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace scalelab::server
