// Implements WorkerService: checks the allocation secret, then passes the request to the core thread. It has a
// completion queue and threads of its own, so that calls of clients, which use gRPC's shared threads, cannot
// delay a heartbeat. A call that waits for the core thread uses no thread.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_builder.h"
#include "scalelab/v1/worker.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/services/auth.h"

namespace scalelab::server {

class WorkerService {
 public:
  WorkerService(Coordinator& coordinator, const Access& access);
  ~WorkerService();
  WorkerService(const WorkerService&) = delete;
  WorkerService& operator=(const WorkerService&) = delete;

  // Registers the service. The builder's server must be shut down before Stop.
  void AddTo(grpc::ServerBuilder& builder);
  // Takes calls. Call it when the server has started.
  void Start();
  // Waits for the answers that the coordinator owes, then ends the threads.
  void Stop();

 private:
  // A call in one of its two states: waiting for a request, or for its answer to be sent.
  class Call;
  template <typename Request, typename Response>
  class TypedCall;

  void Expect(bool synchronize);
  void Serve();
  bool BeginAnswer();
  void EndAnswer();

  Coordinator& coordinator_;
  const Access& access_;
  v1::WorkerService::AsyncService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::vector<std::thread> threads_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int answering_ ABSL_GUARDED_BY(mutex_) = 0;  // calls whose answer is not finished
};

}  // namespace scalelab::server
