// Implements WorkerService: checks the allocation secret, then passes the request to the core thread. It has a
// completion queue and threads of its own, so that calls of clients, which use gRPC's shared threads, cannot
// delay a heartbeat. A call that waits for the core thread uses no thread.
//
// After a restart, all workers report at once what they have. gRPC reads the message of a unary call as soon as it
// arrives, whatever the memory. So ReportEvents is served as a generic method, whose messages are read on request: a few
// at a time. The others wait at the workers, because HTTP/2 limits what a worker sends ahead.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server_builder.h"
#include "scalelab/v1/worker.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/rpc/auth.h"

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
  class Call;
  class Pulse;
  class SynchronizeCall;
  class ReportCall;
  using Service = v1::WorkerService::WithAsyncMethod_Synchronize<
      v1::WorkerService::WithGenericMethod_ReportEvents<v1::WorkerService::Service>>;

  void Serve();
  bool BeginAnswer();
  void EndAnswer();
  // Lets the call read its message when there is room for it.
  void AddReport(ReportCall* call) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records that a message of this size was read, and is to be stored; 0 if the call has ended.
  void EndRead(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records that a message is stored.
  void EndReport(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadNext() ABSL_LOCKS_EXCLUDED(mutex_);

  Coordinator& coordinator_;
  const Access& access_;
  Service service_;
  grpc::AsyncGenericService generic_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Pulse> pulse_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int answering_ ABSL_GUARDED_BY(mutex_) = 0;  // calls whose answer is not finished
  std::deque<ReportCall*> unread_ ABSL_GUARDED_BY(mutex_);
  int reading_ ABSL_GUARDED_BY(mutex_) = 0;             // calls whose message is being read
  int64_t unstored_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of messages that were read
};

}  // namespace scalelab::server
