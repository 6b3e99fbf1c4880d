// Counts the calls of all methods, as an interceptor of gRPC.
#pragma once

#include <memory>

#include "grpcpp/support/server_interceptor.h"
#include "server/metrics/metrics.h"

namespace scalelab::server {

// `metrics` must outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NewRpcCounter(Metrics& metrics);

}  // namespace scalelab::server
