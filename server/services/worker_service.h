// Implements WorkerService: checks the allocation secret, then passes the request to the core thread. The
// service has its own completion queue and threads. Calls of clients use gRPC's shared threads, so they
// cannot delay a heartbeat. A call that waits for the core thread uses no thread.
//
// After a restart of the server, all workers report their events at once. gRPC reads the message of a unary
// call as soon as it arrives, without a limit of memory. Therefore ReportEvents is a generic method, which
// reads its messages on request, a few at a time. The other messages stay on the workers, because HTTP/2 flow
// control limits how much a worker sends before the server reads.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
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
  // Starts to handle calls. Must be called after the start of the gRPC server.
  void Start();
  // Waits until the coordinator has answered all calls, then ends the threads.
  void Stop();

 private:
  class Call;
  class Pulse;
  class SynchronizeCall;
  class ReportCall;
  using Service = v1::WorkerService::WithAsyncMethod_Synchronize<
      v1::WorkerService::WithGenericMethod_ReportEvents<v1::WorkerService::Service>>;

  void Serve();
  // Returns the token of the caller's allocation. A refusal is recorded in the audit log.
  absl::StatusOr<std::string> CheckCaller(const grpc::ServerContextBase& context,
                                          const std::string& action) const;
  bool BeginAnswer();
  void EndAnswer();
  // Adds a call, which reads its message as soon as the limits allow it.
  void AddReport(ReportCall* call) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records that a message of this size was read and will be stored. `bytes` is 0 if the call has ended
  // without a message.
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
  std::unique_ptr<Pulse> pulse_;  // null before Start
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int answering_ ABSL_GUARDED_BY(mutex_) = 0;  // number of calls whose response is in progress
  std::deque<ReportCall*> unread_ ABSL_GUARDED_BY(mutex_);
  int reading_ ABSL_GUARDED_BY(mutex_) = 0;             // number of calls whose message is being read
  int64_t unstored_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // size of messages that were read and are not stored
};

}  // namespace scalelab::server
