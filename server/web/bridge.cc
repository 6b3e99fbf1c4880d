#include "server/web/bridge.h"

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "grpc/support/time.h"
#include "proto/status.h"
#include "server/rpc/web_metadata.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kCallLimit = absl::Minutes(2);
constexpr size_t kHeavyWaiting = 256;

absl::Status Stopping() { return absl::UnavailableError("the dashboard is stopping"); }

}  // namespace

// The common part of all calls: their context and their messages.
class BridgeCall {
 public:
  BridgeCall(const std::string& secret, const WebMethod& method, const WebCaller& caller, MessagePtr request)
      : method(method), request(std::move(request)) {
    context.AddMetadata("authorization", "Bearer " + caller.token);
    context.AddMetadata(kWebSecret, secret);
    context.AddMetadata(kWebAddress, caller.address);
    context.AddMetadata(kWebLogin, caller.login);
  }

  const WebMethod& method;
  const MessagePtr request;
  grpc::ClientContext context;
  MessagePtr response;
  Bridge::Done done;                   // callback of a unary call
  std::weak_ptr<BridgeStream> stream;  // of a stream
};

Bridge::Bridge(std::shared_ptr<grpc::Channel> channel, std::string secret)
    : stub_(std::move(channel)), secret_(std::move(secret)) {}

bool Bridge::Enter(BridgeCall* call) {
  absl::MutexLock lock(&mutex_);
  if (!stopped_) calls_.insert(call);
  return !stopped_;
}

void Bridge::Leave(BridgeCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
}

void Bridge::Call(const WebMethod& method, const WebCaller& caller, MessagePtr request, Done done) {
  auto call = std::make_shared<BridgeCall>(secret_, method, caller, std::move(request));
  call->done = std::move(done);
  call->response = NewMessage(method.descriptor->output_type());
  // A time of the steady clock: absl::Now is wrong for two seconds after the wall clock was set.
  call->context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_millis(absl::ToInt64Milliseconds(kCallLimit), GPR_TIMESPAN)));
  if (!method.heavy) return Begin(std::move(call));
  bool full = false;
  {
    absl::MutexLock lock(&mutex_);
    if (heavy_running_ && !stopped_) {
      full = heavy_waiting_.size() >= kHeavyWaiting;
      if (!full) return heavy_waiting_.push_back(std::move(call));
    }
    if (!full) heavy_running_ = true;
  }
  if (full) {
    return call->done(absl::ResourceExhaustedError("too many browsers wait for curves; try again later"),
                      nullptr);
  }
  Begin(std::move(call));
}

void Bridge::Begin(std::shared_ptr<BridgeCall> call) {
  if (!Enter(call.get())) {
    if (call->method.heavy) NextHeavy();
    return call->done(Stopping(), nullptr);
  }
  BridgeCall& c = *call;
  stub_.UnaryCall(&c.context, c.method.path, {}, c.request.get(), c.response.get(),
                  [this, call = std::move(call)](const grpc::Status& status) {
                    if (call->method.heavy) NextHeavy();
                    call->done(FromGrpc(status), status.ok() ? call->response : nullptr);
                    // Destroy what the callback owns before Leave, because Stop may return after Leave.
                    call->done = nullptr;
                    Leave(call.get());
                  });
}

void Bridge::NextHeavy() {
  std::shared_ptr<BridgeCall> next;
  {
    absl::MutexLock lock(&mutex_);
    heavy_running_ = !heavy_waiting_.empty();
    if (!heavy_running_) return;
    next = std::move(heavy_waiting_.front());
    heavy_waiting_.pop_front();
  }
  Begin(std::move(next));
}

// A stream owns itself until its last callback.
class Bridge::Reactor final
    : public BridgeStream,
      public grpc::ClientBidiReactor<google::protobuf::Message, google::protobuf::Message>,
      public std::enable_shared_from_this<Reactor> {
 public:
  Reactor(Bridge& bridge, const WebMethod& method, const WebCaller& caller, MessagePtr request,
          OnMessage on_message)
      : bridge_(bridge),
        call_(bridge.secret_, method, caller, std::move(request)),
        on_message_(std::move(on_message)) {}

  // Returns false if the bridge has stopped.
  bool Start() {
    self_ = shared_from_this();
    call_.stream = self_;
    if (!bridge_.Enter(&call_)) {
      self_.reset();
      return false;
    }
    bridge_.stub_.PrepareBidiStreamingCall(&call_.context, call_.method.path, {}, this);
    // Reads are started outside of callbacks of gRPC. This hold keeps the call from ending before a
    // read has failed.
    AddHold();
    StartWriteLast(call_.request.get(), grpc::WriteOptions());
    {
      absl::MutexLock lock(&mutex_);
      prepared_ = true;
    }
    Next();
    StartCall();
    return true;
  }

  void Next() override {
    absl::MutexLock lock(&mutex_);
    if (!prepared_ || reading_ || ended_) return;
    reading_ = true;
    call_.response = NewMessage(call_.method.descriptor->output_type());
    StartRead(call_.response.get());
  }

  void Cancel() override {
    call_.context.TryCancel();
    Next();  // this read fails and ends the call; if the call is not prepared yet, Start begins the read
  }

 private:
  void OnReadDone(bool ok) override {
    MessagePtr message;
    {
      absl::MutexLock lock(&mutex_);
      reading_ = false;
      ended_ = !ok;
      message = std::move(call_.response);
    }
    if (!ok) return RemoveHold();
    on_message_(absl::OkStatus(), std::move(message));
  }

  void OnDone(const grpc::Status& status) override {
    on_message_(FromGrpc(status), nullptr);
    // Destroy what the callback owns before Leave, because Stop may return after Leave.
    on_message_ = nullptr;
    bridge_.Leave(&call_);
    self_.reset();
  }

  Bridge& bridge_;
  BridgeCall call_;
  OnMessage on_message_;  // of the reactions
  std::shared_ptr<Reactor> self_;
  absl::Mutex mutex_;
  bool prepared_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

std::shared_ptr<BridgeStream> Bridge::Stream(const WebMethod& method, const WebCaller& caller,
                                             MessagePtr request, OnMessage on_message) {
  auto stream = std::make_shared<Reactor>(*this, method, caller, std::move(request), on_message);
  if (!stream->Start()) on_message(Stopping(), nullptr);
  return stream;
}

void Bridge::Stop() {
  std::deque<std::shared_ptr<BridgeCall>> waiting;
  std::vector<std::shared_ptr<BridgeStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    waiting.swap(heavy_waiting_);
    for (BridgeCall* call : calls_) {
      call->context.TryCancel();
      if (auto stream = call->stream.lock()) streams.push_back(std::move(stream));
    }
  }
  for (const std::shared_ptr<BridgeStream>& stream : streams) stream->Cancel();
  for (const std::shared_ptr<BridgeCall>& call : waiting) call->done(Stopping(), nullptr);
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](decltype(calls_)* calls) { return calls->empty(); }, &calls_));
}

}  // namespace scalelab::server
