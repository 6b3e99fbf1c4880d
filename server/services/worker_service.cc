#include "server/services/worker_service.h"

#include <functional>
#include <utility>

#include "proto/status.h"
#include "server/core/ingest.h"
#include "server/services/reactors.h"

namespace scalelab::server {
namespace {

constexpr int kThreads = 2;
constexpr int kExpected = 16;  // calls of each method that gRPC can deliver before a thread takes one

absl::StatusOr<std::vector<ParsedBatch>> Parse(const v1::ReportEventsRequest& request) {
  std::vector<ParsedBatch> batches;
  batches.reserve(request.batches_size());
  for (const v1::EventBatch& batch : request.batches()) {
    absl::StatusOr<ParsedBatch> parsed = ParseBatch(batch);
    if (!parsed.ok()) return parsed.status();
    batches.push_back(*std::move(parsed));
  }
  return batches;
}

}  // namespace

class WorkerService::Call {
 public:
  virtual ~Call() = default;
  // Handles an event of the queue on one of its threads.
  virtual void Proceed(bool ok) = 0;
};

template <typename Request, typename Response>
class WorkerService::TypedCall final : public Call {
 public:
  // Passes the request to the coordinator, which answers with Finish on any thread.
  using Handle = std::function<void(TypedCall*, const std::string& allocation)>;
  using Method = void (v1::WorkerService::AsyncService::*)(grpc::ServerContext*, Request*,
                                                           grpc::ServerAsyncResponseWriter<Response>*,
                                                           grpc::CompletionQueue*,
                                                           grpc::ServerCompletionQueue*, void*);

  TypedCall(WorkerService& service, Method method, Handle handle, std::function<void()> expect_next)
      : service_(service), handle_(std::move(handle)), expect_next_(std::move(expect_next)) {
    (service.service_.*method)(&context_, &request, &writer_, service.queue_.get(), service.queue_.get(),
                               this);
  }

  void Proceed(bool ok) override {
    if (answered_ || !ok || !service_.BeginAnswer()) {
      if (answered_) service_.EndAnswer();
      delete this;
      return;
    }
    answered_ = true;
    expect_next_();
    const absl::StatusOr<std::string> allocation = service_.access_.CheckWorker(context_);
    if (!allocation.ok()) return Finish(allocation.status());
    const absl::Status handled = WithinMemory([&] {
      handle_(this, *allocation);
      return absl::OkStatus();
    });
    if (!handled.ok()) Finish(handled);
  }

  void Finish(const absl::Status& status) { writer_.Finish(response, ToGrpc(status), this); }

  Request request;
  Response response;

 private:
  WorkerService& service_;
  const Handle handle_;
  const std::function<void()> expect_next_;
  grpc::ServerContext context_;
  grpc::ServerAsyncResponseWriter<Response> writer_{&context_};
  bool answered_ = false;  // the next event is the last
};

WorkerService::WorkerService(Coordinator& coordinator, const Access& access)
    : coordinator_(coordinator), access_(access) {}

WorkerService::~WorkerService() { Stop(); }

void WorkerService::AddTo(grpc::ServerBuilder& builder) {
  builder.RegisterService(&service_);
  queue_ = builder.AddCompletionQueue();
}

void WorkerService::Start() {
  for (int i = 0; i < kExpected; ++i) {
    Expect(/*synchronize=*/true);
    Expect(/*synchronize=*/false);
  }
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Serve(); });
}

void WorkerService::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    mutex_.Await(absl::Condition(
        +[](int* answering) { return *answering == 0; }, &answering_));
  }
  if (queue_ == nullptr) return;
  queue_->Shutdown();
  if (threads_.empty()) Serve();  // was never started
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  queue_.reset();
}

void WorkerService::Expect(bool synchronize) {
  if (synchronize) {
    using Sync = TypedCall<v1::SynchronizeRequest, v1::SynchronizeResponse>;
    new Sync(
        *this, &v1::WorkerService::AsyncService::RequestSynchronize,
        [this](Sync* call, const std::string& allocation) {
          coordinator_.Synchronize(allocation, std::move(call->request),
                                   [call](absl::StatusOr<v1::SynchronizeResponse> desired) {
                                     if (!desired.ok()) return call->Finish(desired.status());
                                     call->response = *std::move(desired);
                                     call->Finish(absl::OkStatus());
                                   });
        },
        [this] { Expect(true); });
    return;
  }
  using Report = TypedCall<v1::ReportEventsRequest, v1::ReportEventsResponse>;
  new Report(
      *this, &v1::WorkerService::AsyncService::RequestReportEvents,
      [this](Report* call, const std::string& allocation) {
        absl::StatusOr<std::vector<ParsedBatch>> batches = Parse(call->request);
        if (!batches.ok()) return call->Finish(batches.status());
        coordinator_.Report(allocation, *std::move(batches),
                            [call](absl::StatusOr<std::vector<v1::ReportEventsResponse::Stream>> streams) {
                              if (streams.ok()) {
                                for (auto& stream : *streams)
                                  *call->response.add_streams() = std::move(stream);
                              }
                              call->Finish(streams.status());
                            });
      },
      [this] { Expect(false); });
}

void WorkerService::Serve() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
}

// Returns false when the service is stopping. Then nothing may be requested of the queue.
bool WorkerService::BeginAnswer() {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return false;
  ++answering_;
  return true;
}

void WorkerService::EndAnswer() {
  absl::MutexLock lock(&mutex_);
  --answering_;
}

}  // namespace scalelab::server
