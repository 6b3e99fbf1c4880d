#include "server/metrics/rpc_counter.h"

#include <string>
#include <utility>

#include "server/time/clock.h"

namespace scalelab::server {
namespace {

using grpc::experimental::InterceptionHookPoints;

class Counter final : public grpc::experimental::Interceptor {
 public:
  Counter(Metrics& metrics, std::string method) : metrics_(metrics), method_(std::move(method)) {}
  // A call without a status was cancelled, because its client has disconnected.
  ~Counter() override { End(grpc::StatusCode::CANCELLED); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS))
      End(methods->GetSendStatus().error_code());
    methods->Proceed();
  }

 private:
  void End(int code) {
    if (std::exchange(ended_, true)) return;
    metrics_.RpcEnded(method_, code, Clock::System().Steady() - began_);
  }

  Metrics& metrics_;
  const std::string method_;
  const absl::Duration began_ = Clock::System().Steady();
  bool ended_ = false;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(Metrics& metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new Counter(metrics_, info->method());
  }

 private:
  Metrics& metrics_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NewRpcCounter(Metrics& metrics) {
  return std::make_unique<Factory>(metrics);
}

}  // namespace scalelab::server
