// The objects that the handlers of all services use: authentication, storage and threads.
#pragma once

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "db/store.h"
#include "server/rpc/auth.h"
#include "server/rpc/call_pool.h"
#include "server/rpc/reactors.h"
#include "server/time/clock.h"
#include "server/time/timers.h"

namespace scalelab::server {

// The threads of all services. Files of attempts may be on a filesystem that blocks, and large requests take
// long: neither may delay the reads of the database, so each kind of work has a pool of its own.
struct CallPools {
  // Filesystems may block. Calls on one filesystem take at most half of the threads, so that logs and data
  // sets on other filesystems can be read. Submissions use `files`.
  CallPool logs{"reads of logs", 8, 1024};
  CallPool files{"reads of files", 8, 1024};
  // As many threads as the store has connections that read; the queue holds a burst of calls.
  CallPool reads{"database reads", 4, 1024};
  CallPool heavy{"large requests", 2, 64};
  // munged and directory services may block.
  CallPool logins{"logins", 4, 256};
  // gRPC may process a new connection on the thread that passes it the descriptor, for as long as data arrives.
  CallPool connections{"new connections", 8, 1024};
  // The time limits of calls.
  Timers timers;

  // All calls must have ended. Returns whether no thread is blocked. If a thread is blocked, all objects that it may use
  // must stay alive.
  bool Stop(absl::Duration grace) {
    const absl::Duration until = Clock::System().Steady() + grace;
    bool ended = true;
    timers.Stop();
    for (CallPool* pool : {&logs, &files, &reads, &heavy, &logins, &connections})
      ended = pool->Stop(std::max(until - Clock::System().Steady(), absl::ZeroDuration())) && ended;
    return ended;
  }
};

struct HandlerContext {
  db::Store& store;
  CallPools& pools;
  const Access& access;
  // Longest time of a unary call, and of one message of a stream.
  absl::Duration call_limit;
};

// Authenticates the caller, and calls `begin(shared_ptr<UnaryCall>)`, which must not block. The audit log gets the end of
// the call. `changes`: whether a successful call changes something.
template <typename Response, typename Begin>
grpc::ServerUnaryReactor* BeginCall(const HandlerContext& handler, grpc::CallbackServerContext* context,
                                    Response* response, Begin begin,
                                    bool changes = ChangesSomething(ActionOf<Response>())) {
  absl::StatusOr<Identity> caller = handler.access.CheckClient(*context);
  if (!caller.ok()) {
    handler.access.AuditUnknown(*context, ActionOf<Response>(), caller.status());
    return Answer(context, caller.status());
  }
  auto client = std::make_shared<ClientCall>(*std::move(caller), ActionOf<Response>(), changes);
  auto call = UnaryCall<Response>::Start(
      context, response, handler.pools.timers, handler.call_limit, client,
      [&access = handler.access, client](const absl::Status& status) { access.Audit(*client, status); });
  begin(call);
  return call->reactor();
}

// Starts a call of an authenticated client whose answer `work(UnaryCall&)` makes on a thread of `pool`.
template <typename Response, typename Work>
grpc::ServerUnaryReactor* AnswerOn(CallPool& pool, const HandlerContext& handler,
                                   grpc::CallbackServerContext* context, Response* response, Work work) {
  return BeginCall(handler, context, response,
                   [&](const auto& call) { FinishOn(pool, call, std::move(work)); });
}

// Like AnswerOn for the pool of database reads, but `work(shared_ptr<UnaryCall>)` finishes the call itself unless
// it returns an error.
template <typename Response, typename Work>
grpc::ServerUnaryReactor* BeginWithRead(const HandlerContext& handler, grpc::CallbackServerContext* context,
                                        Response* response, Work work) {
  return BeginCall(handler, context, response,
                   [&](const auto& call) { ContinueOn(handler.pools.reads, call, std::move(work)); });
}

// Authenticates the caller of a stream. The audit log gets a refusal; refusals after that are added with Access::Audit.
template <typename Response>
absl::StatusOr<std::shared_ptr<ClientCall>> BeginStream(const HandlerContext& handler,
                                                        const grpc::CallbackServerContext& context) {
  absl::StatusOr<Identity> caller = handler.access.CheckClient(context);
  if (!caller.ok()) {
    handler.access.AuditUnknown(context, ActionOf<Response>(), caller.status());
    return caller.status();
  }
  return std::make_shared<ClientCall>(*std::move(caller), ActionOf<Response>(), /*changes=*/false);
}

}  // namespace scalelab::server
