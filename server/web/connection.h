// One HTTP connection of a browser.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "boost/asio/ip/tcp.hpp"
#include "server/web/router.h"

namespace scalelab::server {

struct HttpLimits {
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 1 << 20;
  // A connection is closed if a request does not arrive, or a response is not accepted, within this time.
  absl::Duration transfer = absl::Seconds(30);
  // Time between two comments in a stream without events. The comments let both ends detect that the other
  // end has gone.
  absl::Duration heartbeat = absl::Seconds(15);
  // Shortest time between two events of a stream.
  absl::Duration pace = absl::Milliseconds(400);
};

// Serves requests until the connection is closed. `release` is destroyed with the connection. `router` must
// outlive all connections.
void ServeConnection(boost::asio::ip::tcp::socket socket, Router& router, const HttpLimits& limits,
                     std::shared_ptr<void> release);

}  // namespace scalelab::server
