// A fake coordinator for workers, in the test's process and over real gRPC. It stores reports like the real
// one (positions are authoritative) and returns the desired state that a test sets.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "scalelab/v1/worker.grpc.pb.h"

namespace scalelab::testing {

class FakeWorkerService final : public v1::WorkerService::Service {
 public:
  using AttemptStatus = v1::SynchronizeRequest::AttemptStatus;

  // Serves at `address`, for example "unix:/tmp/x.sock". Rejects callers without this allocation and secret.
  FakeWorkerService(std::string address, std::string allocation, std::string secret);
  ~FakeWorkerService() override;

  // Stops as if killed with SIGKILL, and starts again with everything that was durable.
  void StopServing();
  void StartServing();
  void RefuseEverybody();

  // Change the desired state; each call makes a new generation.
  void Assign(const v1::SynchronizeResponse::DesiredAttempt& attempt);
  void AskToStop(const std::string& token, double grace_seconds);
  void Forget(const std::string& token);
  void Terminate();
  // Rejects all further events of an attempt.
  void Fence(const std::string& token);

  // Wait until the last Synchronize satisfies the condition; return false after 30 s.
  bool WaitForState(const std::string& token, AttemptStatus::State state);
  bool WaitForRequest(const std::function<bool(const v1::SynchronizeRequest&)>& wanted);
  // Waits until Synchronize was called `more` times from now on; returns false after 30 s.
  bool WaitForCalls(int more);
  bool WaitForMetric(const std::string& token, int rank, const std::string& key, int count);

  AttemptStatus Status(const std::string& token);
  v1::SynchronizeRequest LastRequest();
  // Return everything accepted from one rank's file, in order.
  std::vector<std::pair<int64_t, double>> Points(const std::string& token, int rank, const std::string& key);
  std::vector<v1::Event> Events(const std::string& token, int rank);
  std::vector<v1::MalformedLine> Malformed(const std::string& token, int rank);

  grpc::Status Synchronize(grpc::ServerContext* context, const v1::SynchronizeRequest* request,
                           v1::SynchronizeResponse* response) override;
  grpc::Status ReportEvents(grpc::ServerContext* context, const v1::ReportEventsRequest* request,
                            v1::ReportEventsResponse* response) override;

 private:
  struct File {
    int64_t position = 0, line = 0;
    std::map<std::string, std::vector<std::pair<int64_t, double>>> points;  // key -> (step, value)
    std::vector<v1::Event> events;
    std::vector<v1::MalformedLine> malformed;
  };
  bool Await(const std::function<bool()>& condition);
  bool Allowed(const grpc::ServerContext& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desired_.set_generation(desired_.generation() + 1); }

  const std::string address_, allocation_, secret_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool refuse_ ABSL_GUARDED_BY(mutex_) = false;
  v1::SynchronizeResponse desired_ ABSL_GUARDED_BY(mutex_);
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;  // of Synchronize
  v1::SynchronizeRequest last_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, AttemptStatus> seen_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, bool> fenced_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, int>, File> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace scalelab::testing
