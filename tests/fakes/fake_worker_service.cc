#include "tests/fakes/fake_worker_service.h"

#include <algorithm>
#include <functional>

namespace scalelab::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

std::string MetadataOf(const grpc::ServerContext& context, const char* name) {
  auto it = context.client_metadata().find(name);
  return it == context.client_metadata().end() ? "" : std::string(it->second.data(), it->second.size());
}

}  // namespace

FakeWorkerService::FakeWorkerService(std::string address, std::string allocation, std::string secret)
    : address_(std::move(address)), allocation_(std::move(allocation)), secret_(std::move(secret)) {
  desired_.set_generation(1);
  StartServing();
}

FakeWorkerService::~FakeWorkerService() { StopServing(); }

void FakeWorkerService::StartServing() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = false;
  }
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

void FakeWorkerService::StopServing() {
  if (!server_) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

void FakeWorkerService::RefuseEverybody() {
  absl::MutexLock lock(&mutex_);
  refuse_ = true;
  Changed();
}

void FakeWorkerService::Assign(const v1::SynchronizeResponse::DesiredAttempt& attempt) {
  absl::MutexLock lock(&mutex_);
  *desired_.add_attempts() = attempt;
  Changed();
}

void FakeWorkerService::AskToStop(const std::string& token, double grace_seconds) {
  absl::MutexLock lock(&mutex_);
  for (auto& attempt : *desired_.mutable_attempts()) {
    if (attempt.token() != token) continue;
    attempt.set_stop(true);
    attempt.set_grace_seconds(grace_seconds);
  }
  Changed();
}

void FakeWorkerService::Forget(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  auto* attempts = desired_.mutable_attempts();
  attempts->erase(std::remove_if(attempts->begin(), attempts->end(),
                                 [&](const auto& attempt) { return attempt.token() == token; }),
                  attempts->end());
  Changed();
}

void FakeWorkerService::Terminate() {
  absl::MutexLock lock(&mutex_);
  desired_.set_terminate(true);
  Changed();
}

void FakeWorkerService::Fence(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  fenced_[token] = true;
}

bool FakeWorkerService::Await(const std::function<bool()>& condition) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&condition), kPatience);
}

bool FakeWorkerService::WaitForState(const std::string& token, AttemptStatus::State state) {
  return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return seen_[token].state() == state; });
}

bool FakeWorkerService::WaitForRequest(const std::function<bool(const v1::SynchronizeRequest&)>& wanted) {
  return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return wanted(last_); });
}

bool FakeWorkerService::WaitForCalls(int more) {
  int until = 0;
  {
    absl::MutexLock lock(&mutex_);
    until = calls_ + more;
  }
  return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return calls_ >= until; });
}

bool FakeWorkerService::WaitForMetric(const std::string& token, int rank, const std::string& key, int count) {
  return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return files_[{token, rank}].points[key].size() >= static_cast<size_t>(count);
  });
}

FakeWorkerService::AttemptStatus FakeWorkerService::Status(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  return seen_[token];
}

v1::SynchronizeRequest FakeWorkerService::LastRequest() {
  absl::MutexLock lock(&mutex_);
  return last_;
}

std::vector<std::pair<int64_t, double>> FakeWorkerService::Points(const std::string& token, int rank,
                                                                  const std::string& key) {
  absl::MutexLock lock(&mutex_);
  return files_[{token, rank}].points[key];
}

std::vector<v1::Event> FakeWorkerService::Events(const std::string& token, int rank) {
  absl::MutexLock lock(&mutex_);
  return files_[{token, rank}].events;
}

std::vector<v1::MalformedLine> FakeWorkerService::Malformed(const std::string& token, int rank) {
  absl::MutexLock lock(&mutex_);
  return files_[{token, rank}].malformed;
}

bool FakeWorkerService::Allowed(const grpc::ServerContext& context) {
  return !refuse_ && MetadataOf(context, "authorization") == "Bearer " + secret_ &&
         MetadataOf(context, "x-scalelab-allocation") == allocation_;
}

grpc::Status FakeWorkerService::Synchronize(grpc::ServerContext* context,
                                            const v1::SynchronizeRequest* request,
                                            v1::SynchronizeResponse* response) {
  absl::MutexLock lock(&mutex_);
  if (!Allowed(*context)) return {grpc::StatusCode::UNAUTHENTICATED, "no such allocation"};
  last_ = *request;
  ++calls_;
  for (const auto& attempt : request->attempts()) seen_[attempt.token()] = attempt;
  // Poll for cancellation: this server has a thread for every call.
  const absl::Time until = absl::Now() + absl::Seconds(10);
  const auto changed = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return stopping_ || desired_.generation() != request->generation();
  };
  while (absl::Now() < until && !context->IsCancelled() &&
         !mutex_.AwaitWithTimeout(absl::Condition(&changed), absl::Milliseconds(50))) {
  }
  if (stopping_) return {grpc::StatusCode::UNAVAILABLE, "going away"};
  if (!Allowed(*context)) return {grpc::StatusCode::UNAUTHENTICATED, "no such allocation"};
  *response = desired_;
  return grpc::Status::OK;
}

grpc::Status FakeWorkerService::ReportEvents(grpc::ServerContext* context,
                                             const v1::ReportEventsRequest* request,
                                             v1::ReportEventsResponse* response) {
  absl::MutexLock lock(&mutex_);
  if (!Allowed(*context)) return {grpc::StatusCode::UNAUTHENTICATED, "no such allocation"};
  for (const v1::EventBatch& batch : request->batches()) {
    File& file = files_[{batch.token(), batch.rank()}];
    auto& stream = *response->add_streams();
    stream.set_token(batch.token());
    stream.set_rank(batch.rank());
    if (fenced_[batch.token()]) {
      stream.set_outcome(v1::ReportEventsResponse::Stream::FENCED);
    } else if (batch.begin_position() == batch.end_position() || batch.end_position() <= file.position) {
      stream.set_outcome(v1::ReportEventsResponse::Stream::ACCEPTED);
    } else if (batch.begin_position() != file.position || batch.begin_line() != file.line) {
      stream.set_outcome(v1::ReportEventsResponse::Stream::GAP);
    } else {
      stream.set_outcome(v1::ReportEventsResponse::Stream::ACCEPTED);
      file.position = batch.end_position();
      file.line = batch.end_line();
      for (const auto& column : batch.columns()) {
        for (int i = 0; i < column.line_size(); ++i) {
          file.points[column.key()].emplace_back(column.step(i), column.value(i));
        }
      }
      file.events.insert(file.events.end(), batch.events().begin(), batch.events().end());
      file.malformed.insert(file.malformed.end(), batch.malformed().begin(), batch.malformed().end());
    }
    stream.set_position(file.position);
    stream.set_line(file.line);
  }
  return grpc::Status::OK;
}

}  // namespace scalelab::testing
