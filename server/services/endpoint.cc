#include "server/services/endpoint.h"

#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "server/metrics/rpc_counter.h"
#include "server/time/clock.h"

namespace scalelab::server {
namespace {

constexpr int kMaxRequestBytes = 4 << 20;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr int kMaxStreams = 256;  // calls in flight on one connection
// Limit of gRPC's memory for the connections of one transport. Above it, gRPC stops reading
// and cancels streams.
constexpr size_t kMemory = size_t{512} << 20;
constexpr int kIdleMs = 10 * 60 * 1000;
constexpr int kKeepaliveMs = 60 * 1000;
constexpr int kKeepaliveTimeoutMs = 20 * 1000;

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // With bandwidth probing, gRPC would allow a client to send several MiB before the message is read.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  // Keepalive pings detect connections whose peer has vanished.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  grpc::ResourceQuota quota("scalelabd");
  quota.Resize(kMemory);
  builder.SetResourceQuota(quota);
}

// Linking gRPC's reflection adds it to every server. This option removes it.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->erase(
        std::remove_if(plugins->begin(), plugins->end(),
                       [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; }),
        plugins->end());
  }
};

// Refuses a call of reflection if its caller may not use the service. The handlers of the other services
// check their callers themselves.
class ReflectionGuard final : public grpc::experimental::Interceptor {
 public:
  ReflectionGuard(const Access& access, grpc::ServerContextBase& context)
      : access_(access), context_(context) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) Check();
    methods->Proceed();
  }

 private:
  // Cancels the call before gRPC's handler reads the request. The handler cannot send after that.
  void Check() {
    const absl::Status status = access_.CheckClient(context_).status();
    if (status.ok()) return;
    access_.AuditUnknown(context_, "ServerReflection", status);
    grpc_call_cancel_with_status(context_.c_call(),
                                 static_cast<grpc_status_code>(static_cast<int>(status.code())),
                                 std::string(status.message()).c_str(), nullptr);
  }

  const Access& access_;
  grpc::ServerContextBase& context_;
};

class ReflectionGuards final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ReflectionGuards(const Access& access) : access_(access) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    if (!absl::StartsWith(info->method(), "/grpc.reflection.")) return nullptr;
    return new ReflectionGuard(access_, *info->server_context());
  }

 private:
  const Access& access_;
};

}  // namespace

Endpoint::Endpoint(const EndpointContext& context, bool local)
    : access_(context.auth, context.identities, context.connections, local),
      reflection_(context.reflection && local),
      metrics_(context.metrics),
      studies_(context.coordinator, {context.store, context.pools, access_, context.call_limit},
               context.watches, context.scheduler, context.frameworks, context.notify_commands),
      runs_(context.coordinator, {context.store, context.pools, access_, context.call_limit}, context.agents,
            context.runs_dir),
      results_({context.store, context.pools, access_, context.call_limit}),
      analysis_({context.store, context.pools, access_, context.call_limit}),
      predictions_({context.store, context.pools, access_, context.call_limit}),
      archives_(context.coordinator, {context.store, context.pools, access_, context.call_limit},
                context.auth),
      cluster_(context.coordinator, {context.store, context.pools, access_, context.call_limit},
               context.scheduler, context.frameworks, context.version),
      auth_({context.store, context.pools, access_, context.call_limit}, context.munge),
      admin_(context.coordinator, {context.store, context.pools, access_, context.call_limit}, context.prune),
      agents_(access_, context.agents, context.runs_dir),
      workers_(context.coordinator, access_) {}

Endpoint::~Endpoint() { Shutdown(Clock::System().Steady()); }

absl::Status Endpoint::Start() {
  // Keep the threads of gRPC until the process ends, because stopping them takes 10 s if one of them polls.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetLimits(builder);
  if (!reflection_) builder.SetOption(std::make_unique<WithoutReflection>());
  builder.RegisterService(&studies_);
  builder.RegisterService(&runs_);
  builder.RegisterService(&results_);
  builder.RegisterService(&analysis_);
  builder.RegisterService(&predictions_);
  builder.RegisterService(&archives_);
  builder.RegisterService(&cluster_);
  builder.RegisterService(&auth_);
  builder.RegisterService(&admin_);
  builder.RegisterService(&agents_);
  workers_.AddTo(builder);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  if (metrics_ != nullptr) interceptors.push_back(NewRpcCounter(*metrics_));
  if (reflection_) interceptors.push_back(std::make_unique<ReflectionGuards>(access_));
  if (!interceptors.empty()) builder.experimental().SetInterceptorCreators(std::move(interceptors));
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("cannot start the gRPC server");
  workers_.Start();
  return absl::OkStatus();
}

void Endpoint::Take(int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); }

std::shared_ptr<grpc::Channel> Endpoint::InProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  return server_->InProcessChannel(arguments);
}

void Endpoint::SetHealthy(bool healthy) { server_->GetHealthCheckService()->SetServingStatus(healthy); }

void Endpoint::Shutdown(absl::Duration deadline) {
  if (server_ == nullptr) return;
  const int64_t left = absl::ToInt64Nanoseconds(deadline - Clock::System().Steady());
  server_->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left, GPR_TIMESPAN)));
  server_->Wait();
  workers_.Stop();
}

}  // namespace scalelab::server
