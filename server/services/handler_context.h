// What the handlers of all services need: callers, storage and threads.
#pragma once

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "db/store.h"
#include "server/services/auth.h"
#include "server/services/call_pool.h"
#include "server/services/reactors.h"

namespace scalelab::server {

// The threads of all services. Files of attempts may be on a filesystem that blocks, and large requests take
// long: neither may delay the reads of the database, so each kind of work has a pool of its own.
struct CallPools {
  CallPool files{"reads of files", 8, 1024};
  // As many threads as the store has connections that read; the queue holds a burst of calls.
  CallPool reads{"database reads", 4, 1024};
  CallPool heavy{"large requests", 2, 64};
  // gRPC may process a new connection on the thread that passes it the descriptor, for as long as data arrives.
  CallPool connections{"new connections", 8, 1024};

  // Returns whether no thread is blocked. If one is, everything it may use must stay alive.
  bool Stop(absl::Duration grace) {
    const absl::Time until = absl::Now() + grace;
    bool ended = true;
    for (CallPool* pool : {&files, &reads, &heavy, &connections})
      ended = pool->Stop(std::max(until - absl::Now(), absl::ZeroDuration())) && ended;
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

// Starts a call of an authenticated client whose answer `work(UnaryCall&)` makes on a thread of `pool`.
template <typename Response, typename Work>
grpc::ServerUnaryReactor* AnswerOn(CallPool& pool, const HandlerContext& handler,
                                   grpc::CallbackServerContext* context, Response* response, Work work) {
  if (auto s = handler.access.CheckClient(*context); !s.ok()) return Answer(context, s);
  auto call = UnaryCall<Response>::Start(context, response, handler.call_limit);
  FinishOn(pool, call, std::move(work));
  return call->reactor();
}

// Like AnswerOn for the pool of database reads, but `work(shared_ptr<UnaryCall>)` finishes the call itself unless
// it returns an error.
template <typename Response, typename Work>
grpc::ServerUnaryReactor* BeginWithRead(const HandlerContext& handler, grpc::CallbackServerContext* context,
                                        Response* response, Work work) {
  if (auto s = handler.access.CheckClient(*context); !s.ok()) return Answer(context, s);
  auto call = UnaryCall<Response>::Start(context, response, handler.call_limit);
  ContinueOn(handler.pools.reads, call, std::move(work));
  return call->reactor();
}

}  // namespace scalelab::server
