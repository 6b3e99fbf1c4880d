// gRPC helpers of the handlers: a single answer, and a stream of generated messages.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "proto/status.h"

namespace scalelab::server {

inline grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// Writes the messages that `next` fills in, until `next` returns false or an error. `next` may block on a
// disk but not on a peer; gRPC's threads call it, one call at a time.
template <typename Response>
class GeneratedStream : public grpc::ServerWriteReactor<Response> {
 public:
  using Next = std::function<absl::StatusOr<bool>(Response*)>;
  explicit GeneratedStream(Next next) : next_(std::move(next)) { Continue(); }
  explicit GeneratedStream(const absl::Status& error) { this->Finish(ToGrpc(error)); }

 private:
  void OnWriteDone(bool ok) override {
    if (ok)
      Continue();
    else
      this->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client has disconnected"));
  }
  void OnDone() override { delete this; }
  void Continue() {
    response_.Clear();
    const absl::StatusOr<bool> more = next_(&response_);
    if (more.ok() && *more)
      this->StartWrite(&response_);
    else
      this->Finish(ToGrpc(more.status()));
  }

  Next next_;
  Response response_;
};

}  // namespace scalelab::server
