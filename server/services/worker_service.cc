#include "server/services/worker_service.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpc/support/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "proto/status.h"
#include "server/core/ingest.h"
#include "server/rpc/reactors.h"
#include "server/time/stop_signal.h"

namespace scalelab::server {
namespace {

constexpr int kThreads = 2;
constexpr absl::Duration kPulse = absl::Seconds(1);
constexpr int kExpected = 16;  // calls of each method that gRPC can deliver before a thread handles one
constexpr char kReportEvents[] = "/scalelab.v1.WorkerService/ReportEvents";
// Limits of the number of messages that are being read, and of the encoded size of messages that wait for the
// core thread. A decoded message takes about four times its encoded size.
constexpr int kMaxReading = 8;
constexpr int64_t kMaxUnstoredBytes = 16 << 20;

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

// A call, from its arrival until its response is sent.
class WorkerService::Call {
 public:
  virtual ~Call() = default;
  // Handles an event of the queue on one of its threads.
  virtual void Proceed(bool ok) = 0;
};

// Records once a second that the threads of the queue handle calls. A pulse is an event of the queue, like a
// call, so there is none while all threads are blocked. A thread adds the events, because gRPC's timers follow
// the wall clock.
class WorkerService::Pulse final : public Call {
 public:
  explicit Pulse(WorkerService& service) : service_(service), thread_([this] { Run(); }) {}
  // The last event must have been handled.
  ~Pulse() override { Stop(); }

  // Adds no more events. Must be called before the shutdown of the queue.
  void Stop() {
    stop_.Stop();
    if (thread_.joinable()) thread_.join();
  }
  void Proceed(bool /*ok*/) override {
    service_.coordinator_.NoteServing();
    in_queue_ = false;
  }

 private:
  void Run() {
    // An alarm in the past needs no timer: Set adds its event to the queue.
    do {
      if (!in_queue_.exchange(true))
        alarm_.Set(service_.queue_.get(), gpr_inf_past(GPR_CLOCK_MONOTONIC), this);
    } while (!stop_.WaitFor(kPulse));
  }

  WorkerService& service_;
  StopSignal stop_;
  std::atomic<bool> in_queue_ = false;  // whether an event was added and is not handled yet
  grpc::Alarm alarm_;
  std::thread thread_;
};

class WorkerService::SynchronizeCall final : public Call {
 public:
  explicit SynchronizeCall(WorkerService& service) : service_(service) {
    service.service_.RequestSynchronize(&context_, &request_, &writer_, service.queue_.get(),
                                        service.queue_.get(), this);
  }

  void Proceed(bool ok) override {
    if (answered_ || !ok || !service_.BeginAnswer()) {
      if (answered_) service_.EndAnswer();
      delete this;
      return;
    }
    answered_ = true;
    new SynchronizeCall(service_);
    const absl::StatusOr<std::string> allocation = service_.CheckCaller(context_, "Synchronize");
    if (!allocation.ok()) return Finish(allocation.status());
    service_.coordinator_.Synchronize(*allocation, std::move(request_),
                                      [this](absl::StatusOr<v1::SynchronizeResponse> desired) {
                                        if (!desired.ok()) return Finish(desired.status());
                                        response_ = *std::move(desired);
                                        Finish(absl::OkStatus());
                                      });
  }

 private:
  void Finish(const absl::Status& status) { writer_.Finish(response_, ToGrpc(status), this); }

  WorkerService& service_;
  v1::SynchronizeRequest request_;
  v1::SynchronizeResponse response_;
  grpc::ServerContext context_;
  grpc::ServerAsyncResponseWriter<v1::SynchronizeResponse> writer_{&context_};
  bool answered_ = false;  // the next event is the last
};

class WorkerService::ReportCall final : public Call {
 public:
  explicit ReportCall(WorkerService& service) : service_(service) {
    service.generic_.RequestCall(&context_, &stream_, service.queue_.get(), service.queue_.get(), this);
  }

  void Proceed(bool ok) override {
    switch (state_) {
      case State::kExpected:
        return Begin(ok);
      case State::kReading:
        return Store(ok);
      case State::kAnswered:
        service_.EndAnswer();
        delete this;
    }
  }

  void Read() {
    state_ = State::kReading;
    stream_.Read(&message_, this);
  }

 private:
  enum class State { kExpected, kReading, kAnswered };
  using Streams = std::vector<v1::ReportEventsResponse::Stream>;

  void Begin(bool ok) {
    if (!ok || !service_.BeginAnswer()) {
      delete this;
      return;
    }
    new ReportCall(service_);
    // A generic service gets the calls of all methods that no other service has.
    if (context_.method() != kReportEvents)
      return Fail(absl::UnimplementedError(absl::StrCat("there is no method ", context_.method())));
    absl::StatusOr<std::string> allocation = service_.CheckCaller(context_, "ReportEvents");
    if (!allocation.ok()) return Fail(allocation.status());
    allocation_ = *std::move(allocation);
    service_.AddReport(this);
  }

  void Store(bool ok) {
    const auto bytes = static_cast<int64_t>(ok ? message_.Length() : 0);
    service_.EndRead(bytes);
    if (!ok) return Fail(absl::CancelledError("the worker has sent no message"));
    absl::StatusOr<std::vector<ParsedBatch>> batches =
        WithinMemory([this]() -> absl::StatusOr<std::vector<ParsedBatch>> {
          v1::ReportEventsRequest request;
          const grpc::Status parsed =
              grpc::SerializationTraits<v1::ReportEventsRequest>::Deserialize(&message_, &request);
          if (!parsed.ok()) return absl::InvalidArgumentError("the message is no ReportEventsRequest");
          return Parse(request);
        });
    message_.Clear();
    if (!batches.ok()) {
      service_.EndReport(bytes);
      return Fail(batches.status());
    }
    service_.coordinator_.Report(
        allocation_, *std::move(batches), [this, bytes](absl::StatusOr<Streams> streams) {
          service_.EndReport(bytes);
          if (!streams.ok()) return Fail(streams.status());
          v1::ReportEventsResponse response;
          for (auto& stream : *streams) *response.add_streams() = std::move(stream);
          const grpc::Slice slice(response.SerializeAsString());
          state_ = State::kAnswered;
          stream_.WriteAndFinish(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), grpc::Status::OK, this);
        });
  }

  void Fail(const absl::Status& status) {
    state_ = State::kAnswered;
    stream_.Finish(ToGrpc(status), this);
  }

  WorkerService& service_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  grpc::ByteBuffer message_;
  std::string allocation_;
  State state_ = State::kExpected;
};

WorkerService::WorkerService(Coordinator& coordinator, const Access& access)
    : coordinator_(coordinator), access_(access) {}

WorkerService::~WorkerService() { Stop(); }

void WorkerService::AddTo(grpc::ServerBuilder& builder) {
  builder.RegisterService(&service_);
  builder.RegisterAsyncGenericService(&generic_);
  queue_ = builder.AddCompletionQueue();
}

void WorkerService::Start() {
  for (int i = 0; i < kExpected; ++i) {
    new SynchronizeCall(*this);
    new ReportCall(*this);
  }
  pulse_ = std::make_unique<Pulse>(*this);
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
  if (pulse_ != nullptr) pulse_->Stop();
  queue_->Shutdown();
  if (threads_.empty()) Serve();  // Start was never called; drain the queue
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  queue_.reset();
}

void WorkerService::Serve() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
}

absl::StatusOr<std::string> WorkerService::CheckCaller(const grpc::ServerContextBase& context,
                                                       const std::string& action) const {
  absl::StatusOr<std::string> allocation = access_.CheckWorker(context);
  if (!allocation.ok()) access_.AuditUnknown(context, action, allocation.status());
  return allocation;
}

// Registers a response in progress. Returns false if the service is stopping; then the caller must not
// use the queue.
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

void WorkerService::AddReport(ReportCall* call) {
  {
    absl::MutexLock lock(&mutex_);
    unread_.push_back(call);
  }
  ReadNext();
}

void WorkerService::EndRead(int64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    --reading_;
    unstored_bytes_ += bytes;
  }
  ReadNext();
}

void WorkerService::EndReport(int64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    unstored_bytes_ -= bytes;
  }
  ReadNext();
}

void WorkerService::ReadNext() {
  while (true) {
    ReportCall* next = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (unread_.empty() || reading_ >= kMaxReading || unstored_bytes_ >= kMaxUnstoredBytes) return;
      next = unread_.front();
      unread_.pop_front();
      ++reading_;
    }
    next->Read();
  }
}

}  // namespace scalelab::server
