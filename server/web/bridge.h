// Calls of the dashboard to the services of this process.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "server/web/methods.h"

namespace scalelab::server {

// The caller. The services authenticate its token like that of any other client.
struct WebCaller {
  std::string token;
  std::string address;  // of the browser
  std::string login;    // a name of the login, without secrets
};

class BridgeCall;

// A server-streaming call. The caller requests each message, so the service does not send faster than the
// browser reads. Thread-safe.
class BridgeStream {
 public:
  virtual ~BridgeStream() = default;
  // Requests the next message. One callback follows.
  virtual void Next() = 0;
  virtual void Cancel() = 0;
};

// May be used from any thread. Callbacks run on threads of gRPC and must not block.
class Bridge {
 public:
  using Done = std::function<void(absl::Status status, MessagePtr response)>;
  // Each message comes with OK. The last callback has no message and the final status.
  using OnMessage = std::function<void(absl::Status status, MessagePtr message)>;

  // `secret`: that of kWebSecret.
  Bridge(std::shared_ptr<grpc::Channel> channel, std::string secret);
  ~Bridge() { Stop(); }

  // Makes a unary call. `done` is called once. Heavy methods run one at a time, so that dashboards
  // do not take all threads from other clients. Further calls of heavy methods wait; if too many
  // wait, returns RESOURCE_EXHAUSTED.
  void Call(const WebMethod& method, const WebCaller& caller, MessagePtr request, Done done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts a stream, and requests its first message.
  std::shared_ptr<BridgeStream> Stream(const WebMethod& method, const WebCaller& caller, MessagePtr request,
                                       OnMessage on_message) ABSL_LOCKS_EXCLUDED(mutex_);
  // Cancels all calls, and returns when their callbacks have returned. Later calls fail at once.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class BridgeCall;
  using Stub = grpc::TemplatedGenericStub<google::protobuf::Message, google::protobuf::Message>;
  class Reactor;

  // Records a call, unless the bridge has stopped.
  bool Enter(BridgeCall* call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave(BridgeCall* call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Begin(std::shared_ptr<BridgeCall> call);
  void NextHeavy() ABSL_LOCKS_EXCLUDED(mutex_);

  Stub stub_;
  const std::string secret_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_set<BridgeCall*> calls_ ABSL_GUARDED_BY(mutex_);
  bool heavy_running_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<BridgeCall>> heavy_waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace scalelab::server
