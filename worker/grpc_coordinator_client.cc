#include "worker/grpc_coordinator_client.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpcpp/grpcpp.h"
#include "proto/status.h"
#include "scalelab/v1/worker.grpc.pb.h"
#include "tls/credentials.h"
#include "worker/process/steady_time.h"

namespace scalelab::worker {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;

// An address of the coordinator, and its channel.
class Server {
 public:
  using Stub = v1::WorkerService::Stub;

  static absl::StatusOr<Server> New(absl::string_view address, const std::string& certificate) {
    Server server;
    grpc::ChannelArguments& arguments = server.arguments_;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // A new channel must not wait for the end of the backoff of the channel that it replaces.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    if (absl::ConsumePrefix(&address, "insecure:") || absl::StartsWith(address, "unix:")) {
      server.credentials_ = grpc::InsecureChannelCredentials();
    } else {
      auto credentials = tls::Trust(certificate, arguments);
      if (!credentials.ok()) return credentials.status();
      server.credentials_ = *std::move(credentials);
    }
    server.target_ = std::string(address);
    server.Connect();
    return server;
  }

  // Replaces the channel. The calls in flight keep the old one.
  void Connect() {
    stub_ = v1::WorkerService::NewStub(grpc::CreateCustomChannel(target_, credentials_, arguments_));
    Answered();
  }
  const std::shared_ptr<Stub>& stub() const { return stub_; }

  void Answered() {
    answered_ = SteadyNow();
    failed_ = false;
  }
  void Failed() { failed_ = true; }
  // Returns how long calls of this channel have failed; zero if the last one was answered.
  absl::Duration Silence() const { return failed_ ? SteadyNow() - answered_ : absl::ZeroDuration(); }

 private:
  std::string target_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  grpc::ChannelArguments arguments_;
  std::shared_ptr<Stub> stub_;
  absl::Duration answered_;  // SteadyNow of the last answer, or of the new channel
  bool failed_ = false;      // since `answered_`
};

class GrpcCoordinatorClient final : public CoordinatorClient {
 public:
  GrpcCoordinatorClient(const CoordinatorAddress& address, std::vector<Server> servers,
                        absl::Duration deadline)
      : address_(address),
        deadline_(deadline),
        servers_(std::move(servers)),
        thread_([this] { EndOverdueCalls(); }) {}

  ~GrpcCoordinatorClient() override {
    {
      std::unique_lock lock(mutex_);
      stopping_ = true;
      for (AnyCall* call : calls_) call->context.TryCancel();
      changed_.notify_all();
      changed_.wait(lock, [this] { return unfinished_ == 0; });
    }
    thread_.join();
  }

  void Synchronize(const v1::SynchronizeRequest& request, Synchronized done) override {
    Start<v1::SynchronizeRequest, v1::SynchronizeResponse>(
        request, std::move(done), true, [](auto* call, auto then) {
          call->stub->async()->Synchronize(&call->context, &call->request, &call->response, std::move(then));
        });
  }

  void CancelSynchronize() override {
    std::lock_guard lock(mutex_);
    for (AnyCall* call : calls_) {
      if (call->poll) call->context.TryCancel();
    }
  }

  void ReportEvents(const v1::ReportEventsRequest& request, Reported done) override {
    Start<v1::ReportEventsRequest, v1::ReportEventsResponse>(
        request, std::move(done), false, [](auto* call, auto then) {
          call->stub->async()->ReportEvents(&call->context, &call->request, &call->response, std::move(then));
        });
  }

 private:
  struct AnyCall {
    std::shared_ptr<Server::Stub> stub;  // destroyed after `context`, see ReleaseReplaced
    grpc::ClientContext context;
    bool poll = false;
    size_t server = 0;
    absl::Duration due;  // SteadyNow of the deadline
    // Guarded by mutex_.
    bool overdue = false;  // cancelled at the deadline
  };
  template <typename Request, typename Response>
  struct Call : AnyCall {
    Request request;
    Response response;
  };

  template <typename Request, typename Response, typename Begin>
  void Start(const Request& request, std::function<void(absl::StatusOr<Response>)> done, bool poll,
             Begin begin) {
    auto call = std::make_shared<Call<Request, Response>>();
    call->request = request;
    call->poll = poll;
    call->context.AddMetadata("authorization", absl::StrCat("Bearer ", address_.secret));
    call->context.AddMetadata("x-scalelab-allocation", address_.allocation);
    Register(call.get());
    begin(call.get(), [this, call, done = std::move(done)](const grpc::Status& status) mutable {
      if (const absl::Status result = Ended(call.get(), status); result.ok()) {
        done(std::move(call->response));
      } else {
        done(result);
      }
      // A call holds a reference to its channel. Releasing the last reference joins gRPC's threads, so the
      // call must be released before `unfinished_` is decremented: if one of gRPC's threads released the last
      // reference, gRPC would use freed memory (grpc/grpc pull request 32584). `servers_` and `replaced_` hold the others.
      call.reset();
      done = nullptr;
      std::lock_guard lock(mutex_);
      --unfinished_;
      changed_.notify_all();
    });
  }

  // Chooses the channel of a call that begins.
  void Register(AnyCall* call) {
    std::lock_guard lock(mutex_);
    Server& server = servers_[current_];
    if (server.Silence() > deadline_ / 2) {
      replaced_.push_back(server.stub());
      server.Connect();
    }
    call->server = current_;
    call->stub = server.stub();
    call->due = SteadyNow() + deadline_;
    calls_.insert(call);
    ++unfinished_;
  }

  // Returns the status for the caller.
  absl::Status Ended(AnyCall* call, const grpc::Status& status) {
    std::lock_guard lock(mutex_);
    calls_.erase(call);
    Server& server = servers_[call->server];
    if (status.error_code() == grpc::StatusCode::CANCELLED) {
      if (!call->overdue) return FromGrpc(status);
      server.Failed();
      return absl::DeadlineExceededError(absl::StrCat("no answer within ", absl::FormatDuration(deadline_)));
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      server.Failed();
      // The next call uses the next address, unless another failed call has already caused that.
      if (call->server == current_) current_ = (current_ + 1) % servers_.size();
    } else {
      server.Answered();
    }
    return FromGrpc(status);
  }

  // Cancels the calls that have reached their deadline, until the destructor. Deadlines of gRPC follow the wall clock.
  void EndOverdueCalls() {
    std::unique_lock lock(mutex_);
    while (true) {
      ReleaseReplaced(lock);
      if (stopping_) return;
      const absl::Duration now = SteadyNow();
      absl::Duration next = now + deadline_;  // a call that begins during the wait is not due earlier
      for (AnyCall* call : calls_) {
        if (call->overdue) continue;
        if (call->due <= now) {
          call->overdue = true;
          call->context.TryCancel();
        } else {
          next = std::min(next, call->due);
        }
      }
      changed_.wait_until(lock, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(next - now));
    }
  }

  // Releases the replaced channels that no call uses, on the calling thread. `lock` is open meanwhile.
  void ReleaseReplaced(std::unique_lock<std::mutex>& lock) {
    std::vector<std::shared_ptr<Server::Stub>> unused;
    const auto used = [](const std::shared_ptr<Server::Stub>& stub) { return stub.use_count() > 1; };
    const auto first = std::partition(replaced_.begin(), replaced_.end(), used);
    unused.assign(std::move_iterator(first), std::move_iterator(replaced_.end()));
    replaced_.erase(first, replaced_.end());
    lock.unlock();
    unused.clear();
    lock.lock();
  }

  const CoordinatorAddress address_;
  const absl::Duration deadline_;
  std::mutex mutex_;
  std::condition_variable changed_;  // its timeouts follow the steady clock, unlike those of absl::Mutex
  // Guarded by mutex_.
  std::vector<Server> servers_;
  size_t current_ = 0;                                   // index of the server for the next call
  std::set<AnyCall*> calls_;                             // in flight
  std::vector<std::shared_ptr<Server::Stub>> replaced_;  // replaced channels
  int unfinished_ = 0;  // calls that still hold a reference to the channel or to this
  bool stopping_ = false;
  std::thread thread_;  // calls EndOverdueCalls
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorClient>> NewGrpcCoordinatorClient(const CoordinatorAddress& address,
                                                                            absl::Duration deadline) {
  std::vector<Server> servers;
  for (const std::string& text : address.servers) {
    auto server = Server::New(text, address.certificate);
    if (!server.ok()) return server.status();
    servers.push_back(*std::move(server));
  }
  return std::make_unique<GrpcCoordinatorClient>(address, std::move(servers), deadline);
}

}  // namespace scalelab::worker
