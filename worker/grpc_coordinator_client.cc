#include "worker/grpc_coordinator_client.h"

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "proto/status.h"
#include "scalelab/v1/worker.grpc.pb.h"
#include "tls/credentials.h"

namespace scalelab::worker {
namespace {

// Deadline of a Synchronize call. The coordinator answers it within 10 s.
constexpr int kDeadlineSeconds = 20;
constexpr int kMaxMessageBytes = 64 << 20;

absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(absl::string_view server,
                                                    const std::string& certificate) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  if (absl::ConsumePrefix(&server, "insecure:") || absl::StartsWith(server, "unix:"))
    return grpc::CreateCustomChannel(std::string(server), grpc::InsecureChannelCredentials(), arguments);
  auto credentials = tls::Trust(certificate, arguments);
  if (!credentials.ok()) return credentials.status();
  return grpc::CreateCustomChannel(std::string(server), *credentials, arguments);
}

class GrpcCoordinatorClient final : public CoordinatorClient {
 public:
  using Stubs = std::vector<std::unique_ptr<v1::WorkerService::Stub>>;
  GrpcCoordinatorClient(const CoordinatorAddress& address, Stubs stubs)
      : address_(address), stubs_(std::move(stubs)) {}

  ~GrpcCoordinatorClient() override {
    absl::MutexLock lock(&mutex_);
    for (grpc::ClientContext* context : calls_) context->TryCancel();
    mutex_.Await(absl::Condition(
        +[](int* unfinished) { return *unfinished == 0; }, &unfinished_));
  }

  void Synchronize(const v1::SynchronizeRequest& request, Synchronized done) override {
    Start<v1::SynchronizeRequest, v1::SynchronizeResponse>(
        request, std::move(done), true, [](auto* stub, auto* call, auto then) {
          stub->async()->Synchronize(&call->context, &call->request, &call->response, std::move(then));
        });
  }

  void CancelSynchronize() override {
    absl::MutexLock lock(&mutex_);
    for (grpc::ClientContext* context : polls_) context->TryCancel();
  }

  void ReportEvents(const v1::ReportEventsRequest& request, Reported done) override {
    Start<v1::ReportEventsRequest, v1::ReportEventsResponse>(
        request, std::move(done), false, [](auto* stub, auto* call, auto then) {
          stub->async()->ReportEvents(&call->context, &call->request, &call->response, std::move(then));
        });
  }

 private:
  template <typename Request, typename Response>
  struct Call {
    grpc::ClientContext context;
    Request request;
    Response response;
  };

  template <typename Request, typename Response, typename Begin>
  void Start(const Request& request, std::function<void(absl::StatusOr<Response>)> done, bool poll,
             Begin begin) {
    auto call = std::make_shared<Call<Request, Response>>();
    call->request = request;
    call->context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(kDeadlineSeconds, GPR_TIMESPAN)));
    call->context.AddMetadata("authorization", absl::StrCat("Bearer ", address_.secret));
    call->context.AddMetadata("x-scalelab-allocation", address_.allocation);
    v1::WorkerService::Stub* stub;
    size_t server;
    {
      absl::MutexLock lock(&mutex_);
      ++unfinished_;
      calls_.insert(&call->context);
      if (poll) polls_.insert(&call->context);
      server = server_;
      stub = stubs_[server].get();
    }
    begin(stub, call.get(), [this, call, server, done = std::move(done)](grpc::Status status) mutable {
      if (status.error_code() == grpc::StatusCode::UNAVAILABLE) TryNextAfter(server);
      if (status.ok()) {
        done(std::move(call->response));
      } else {
        done(FromGrpc(status));
      }
      {
        absl::MutexLock lock(&mutex_);
        polls_.erase(&call->context);
        calls_.erase(&call->context);
      }
      // A call holds a reference to its channel. Releasing the last reference joins gRPC's threads, so the
      // call must be released before `unfinished_` is decremented: if one of gRPC's threads released the last
      // reference, gRPC would use freed memory (grpc/grpc pull request 32584).
      call.reset();
      done = nullptr;
      absl::MutexLock lock(&mutex_);
      --unfinished_;
    });
  }

  // Makes the next call use the next address, unless another failed call has already done so.
  void TryNextAfter(size_t server) {
    absl::MutexLock lock(&mutex_);
    if (server == server_) server_ = (server_ + 1) % stubs_.size();
  }

  const CoordinatorAddress address_;
  const Stubs stubs_;
  absl::Mutex mutex_;
  size_t server_ ABSL_GUARDED_BY(mutex_) = 0;
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // calls that still hold a reference to the channel or to this
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> polls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorClient>> NewGrpcCoordinatorClient(
    const CoordinatorAddress& address) {
  GrpcCoordinatorClient::Stubs stubs;
  for (const std::string& server : address.servers) {
    auto channel = Dial(server, address.certificate);
    if (!channel.ok()) return channel.status();
    stubs.push_back(v1::WorkerService::NewStub(*channel));
  }
  return std::make_unique<GrpcCoordinatorClient>(address, std::move(stubs));
}

}  // namespace scalelab::worker
