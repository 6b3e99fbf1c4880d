// Helpers for gRPC handlers: an immediate response, a call whose response is computed on other
// threads, and a stream of generated messages. gRPC's own threads never block in a handler, because
// they serve all connections.
#pragma once

#include <grpc/support/time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/support/server_callback.h"
#include "proto/status.h"
#include "server/rpc/call_pool.h"
#include "server/rpc/client_call.h"
#include "server/time/timers.h"

namespace scalelab::server {

inline grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// Fails a call because Coordinator::Read has returned no state.
inline absl::Status NoState() {
  return MakeError(
      absl::StatusCode::kUnavailable, "NO_STATE",
      "scalelabd is stopping, has too many requests, or cannot read its database (its log has the "
      "reason); try again");
}
inline absl::Status CallerGone() { return absl::CancelledError("the client has disconnected"); }
inline absl::Status CallTookTooLong() {
  return MakeError(
      absl::StatusCode::kDeadlineExceeded, "CALL_TOO_LONG",
      "the call has reached its time limit; the disk of scalelabd or of the attempts may be slow or "
      "blocked, or the request is large");
}

// Returns the time that is left until the deadline of the caller. gRPC stores this deadline as a time of the steady clock.
inline absl::Duration TimeLeft(const grpc::CallbackServerContext& context) {
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC));
  return absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

// Calls `work` and returns its result, or RESOURCE_EXHAUSTED if it runs out of memory.
template <typename Work>
auto WithinMemory(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
        "scalelabd has too little memory for this request; make the request smaller, or try again "
        "later");
  }
}

// A unary call. It ends at its first Finish, when its client has gone, or at its time limit, even if a thread is
// still making the answer. That thread must not use the request or the response of gRPC, which end with the call:
// it uses a copy of the request, and `response` of this class.
template <typename Response>
class UnaryCall : public std::enable_shared_from_this<UnaryCall<Response>> {
 public:
  // Called once with the status of the call.
  using OnEnd = std::function<void(const absl::Status&)>;

  // `limit` applies in addition to the deadline of the caller.
  static std::shared_ptr<UnaryCall> Start(grpc::CallbackServerContext* context, Response* response,
                                          Timers& timers, absl::Duration limit,
                                          std::shared_ptr<ClientCall> client, OnEnd on_end) {
    auto call = std::make_shared<UnaryCall>(response, std::move(client), std::move(on_end));
    call->reactor_ = new Reactor(call);
    call->reactor_->timer =
        timers.Call(std::min(TimeLeft(*context), limit), [call] { call->Finish(CallTookTooLong()); });
    return call;
  }
  // For Start only.
  UnaryCall(Response* sent, std::shared_ptr<ClientCall> client, OnEnd on_end)
      : client_(std::move(client)), on_end_(std::move(on_end)), sent_(sent) {}

  // Valid until the handler returns.
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }
  // Returns the call's authenticated caller and its data for the audit log.
  ClientCall& client() const { return *client_; }
  const Identity& caller() const { return client_->caller(); }
  // Returns whether nobody waits for the answer any more.
  bool over() const { return over_; }
  // Ends the call. Does nothing if the call is over.
  void Finish(const absl::Status& status) {
    if (over_.exchange(true)) return;
    if (on_end_ != nullptr) on_end_(status);
    if (status.ok()) *sent_ = std::move(response);
    reactor_->Finish(ToGrpc(status));
  }

  Response response;  // used by one thread at a time

 private:
  struct Reactor final : grpc::ServerUnaryReactor {
    explicit Reactor(std::shared_ptr<UnaryCall> its_call) : call(std::move(its_call)) {}
    void OnCancel() override { call->Finish(CallerGone()); }
    void OnDone() override { delete this; }
    const std::shared_ptr<UnaryCall> call;
    Timers::Timer timer;  // the time limit of the call
  };

  const std::shared_ptr<ClientCall> client_;
  const OnEnd on_end_;
  Response* const sent_;
  Reactor* reactor_ = nullptr;  // owned by gRPC; not used after the call is over
  std::atomic<bool> over_ = false;
};

// Calls `work(UnaryCall&)` on a thread of `pool`, and finishes the call with the status that it returns. Finishes
// it with an error of the pool instead, and skips work that nobody waits for.
template <typename Response, typename Work>
void FinishOn(CallPool& pool, std::shared_ptr<UnaryCall<Response>> call, Work work) {
  const std::string client = call->client().pool_client();
  pool.Run(
      [call = std::move(call), work = std::move(work)](absl::Status status) mutable {
        if (call->over()) return;
        if (status.ok()) status = WithinMemory([&]() -> absl::Status { return work(*call); });
        call->Finish(status);
      },
      {}, client);
}

// Like FinishOn, but `work` finishes the call itself unless it returns an error.
template <typename Response, typename Work>
void ContinueOn(CallPool& pool, std::shared_ptr<UnaryCall<Response>> call, Work work, Subject subject = {}) {
  const std::string client = call->client().pool_client();
  pool.Run(
      [call = std::move(call), work = std::move(work)](absl::Status status) mutable {
        if (call->over()) return;
        if (status.ok()) status = WithinMemory([&]() -> absl::Status { return work(call); });
        if (!status.ok()) call->Finish(status);
      },
      std::move(subject), client);
}

// Writes the messages that `next` fills in, until `next` returns false or an error. `next` runs on a thread of
// `pool`, one call at a time and only when the client has taken the message before. The stream ends when its
// client has gone, or when one call of `next` takes longer than `limit`, even if that call is blocked. Messages for which
// `ready` returns true are made on gRPC's threads: a change of threads takes longer than a small message.
template <typename Response>
class GeneratedStream final : public grpc::ServerWriteReactor<Response> {
 public:
  using Next = std::function<absl::StatusOr<bool>(Response*)>;
  // Returns whether the next call of `next` makes a small message of what is in memory. Not called during `next`.
  using Ready = std::function<bool()>;
  // Returns Subject::filesystem of the calls of `next`.
  using FindFilesystem = std::function<absl::StatusOr<std::string>()>;

  // `subject`: as for CallPool::Run. If there is a function `find`, it is called once, before `next` and with the same limit,
  // on a thread of `pool`; its error ends the stream.
  static GeneratedStream* Start(CallPool& pool, Timers& timers, const ClientCall& client,
                                absl::Duration limit, Next next, Subject subject = {}, Ready ready = nullptr,
                                FindFilesystem find = nullptr) {
    auto* stream = new GeneratedStream(std::make_shared<Source>(pool, timers, client.pool_client(), limit,
                                                                std::move(next), std::move(subject),
                                                                std::move(ready), std::move(find)));
    {
      absl::MutexLock lock(&stream->source_->mutex);
      stream->source_->stream = stream;
    }
    Continue(stream->source_);
    return stream;
  }
  static GeneratedStream* Fail(const absl::Status& error) {
    auto* stream = new GeneratedStream(nullptr);
    stream->Finish(ToGrpc(error));
    return stream;
  }

 private:
  // The part of the stream that outlives the call if `next` is blocked.
  struct Source {
    Source(CallPool& its_pool, Timers& its_timers, std::string its_client, absl::Duration its_limit,
           Next its_next, Subject its_subject, Ready its_ready, FindFilesystem its_find)
        : pool(its_pool),
          timers(its_timers),
          client(std::move(its_client)),
          limit(its_limit),
          next(std::move(its_next)),
          subject(std::move(its_subject)),
          ready(std::move(its_ready)),
          find(std::move(its_find)) {}
    CallPool& pool;
    Timers& timers;
    const std::string client;
    const absl::Duration limit;
    const Next next;
    Subject subject;
    const Ready ready;
    FindFilesystem find;  // null after its call
    bool IsReady() const { return ready != nullptr && ready(); }
    Response response;               // used by `next` while it runs, otherwise by gRPC
    std::atomic<int64_t> calls = 0;  // of `next`
    absl::Mutex mutex;
    GeneratedStream* stream ABSL_GUARDED_BY(mutex) = nullptr;  // null when the call is over
  };

  explicit GeneratedStream(std::shared_ptr<Source> source) : source_(std::move(source)) {}

  void OnWriteDone(bool ok) override {
    if (!ok) return End(*source_, CallerGone());
    if (source_->IsReady()) return Write(source_);
    Continue(source_);
  }
  void OnCancel() override {
    if (source_ != nullptr) End(*source_, CallerGone());
  }
  void OnDone() override { delete this; }

  static void Continue(const std::shared_ptr<Source>& source) {
    {
      absl::MutexLock lock(&source->mutex);
      if (source->stream == nullptr) return;
      const int64_t call = ++source->calls;
      source->stream->timer_ = source->timers.Call(source->limit, [source, call] {
        if (call == source->calls) End(*source, CallTookTooLong());
      });
    }
    source->pool.Run(
        [source](const absl::Status& status) {
          if (!status.ok()) return End(*source, status);
          if (source->find == nullptr) return Write(source);
          const absl::StatusOr<std::string> found = WithinMemory(source->find);
          source->find = nullptr;
          if (!found.ok()) return End(*source, found.status());
          source->subject.filesystem = *found;
          Continue(source);
        },
        source->subject, source->client);
  }

  // Makes the next message and begins to write it.
  static void Write(const std::shared_ptr<Source>& source) {
    {
      absl::MutexLock lock(&source->mutex);
      if (source->stream == nullptr) return;
    }
    source->response.Clear();
    const absl::StatusOr<bool> more = WithinMemory([&] { return source->next(&source->response); });
    if (!more.ok() || !*more) return End(*source, more.status());
    ++source->calls;
    absl::MutexLock lock(&source->mutex);
    if (source->stream != nullptr) source->stream->StartWrite(&source->response);
  }

  static void End(Source& source, const absl::Status& status) {
    GeneratedStream* stream = nullptr;
    {
      absl::MutexLock lock(&source.mutex);
      stream = std::exchange(source.stream, nullptr);
    }
    if (stream != nullptr) stream->Finish(ToGrpc(status));
  }

  const std::shared_ptr<Source> source_;
  Timers::Timer timer_;  // the time limit of the call of `next` in progress
};

}  // namespace scalelab::server
