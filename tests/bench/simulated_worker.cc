#include "tests/bench/simulated_worker.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/channel.h"

namespace scalelab::bench {

SimulatedWorker::SimulatedWorker(std::shared_ptr<grpc::Channel> channel, std::string allocation,
                                 std::string secret, int index)
    : stub_(v1::WorkerService::NewStub(channel)),
      allocation_(std::move(allocation)),
      secret_(std::move(secret)) {
  sync_.set_node(absl::StrCat("node-", index));
  sync_.set_instance(absl::StrCat("instance-", index));
  sync_.set_version("bench");
}

std::unique_ptr<grpc::ClientContext> SimulatedWorker::Context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata("authorization", absl::StrCat("Bearer ", secret_));
  context->AddMetadata("x-scalelab-allocation", allocation_);
  context->set_wait_for_ready(true);
  return context;
}

void SimulatedWorker::Work(int queue_limit, std::function<void()> done) {
  done_ = std::move(done);
  sync_.set_queue_limit(queue_limit);
  Synchronize();
}

void SimulatedWorker::Synchronize() {
  context_ = Context();
  sync_.set_generation(desired_.generation());
  desired_.Clear();
  asked_ = absl::Now();
  stub_->async()->Synchronize(context_.get(), &sync_, &desired_, [this](grpc::Status status) {
    if (!status.ok() || desired_.terminate()) return done_();
    if (desired_.attempts_size() == 0) return Synchronize();
    if (completed_ > 0) assign_seconds_.push_back(absl::ToDoubleSeconds(absl::Now() - asked_));
    Finish();
  });
}

void SimulatedWorker::Finish() {
  report_.Clear();
  for (const auto& attempt : desired_.attempts()) {
    v1::EventBatch& batch = *report_.add_batches();
    batch.set_token(attempt.token());
    batch.set_end_position(100);
    batch.set_end_line(1);
    v1::Event& event = *batch.add_events();
    event.set_kind(v1::Event::FINISH);
    event.set_parameter_hash("0123456789abcdef");
    (*event.mutable_metrics())["run/throughput"] = 100;
    v1::PointColumn& column = *batch.add_columns();
    column.set_key("run/throughput");
    column.add_line(0);
    column.add_step(-1);
    column.add_time(1);
    column.add_value(100);
  }
  context_ = Context();
  stub_->async()->ReportEvents(context_.get(), &report_, &reported_, [this](grpc::Status status) {
    if (!status.ok()) return done_();
    completed_ += desired_.attempts_size();
    sync_.clear_attempts();
    for (const auto& attempt : desired_.attempts()) {
      auto* ended = sync_.add_attempts();
      ended->set_token(attempt.token());
      ended->set_state(v1::SynchronizeRequest::AttemptStatus::ENDED);
      ended->set_run_seconds(0.001);
    }
    Synchronize();
  });
}

std::string SimulatedWorker::Attach() {
  while (true) {
    auto context = Context();
    sync_.set_generation(desired_.generation());
    if (!stub_->Synchronize(context.get(), sync_, &desired_).ok()) return "";
    if (desired_.attempts_size() > 0) return desired_.attempts(0).token();
  }
}

bool SimulatedWorker::Report(const v1::ReportEventsRequest& request) {
  auto context = Context();
  v1::ReportEventsResponse response;
  if (!stub_->ReportEvents(context.get(), request, &response).ok()) return false;
  for (const auto& stream : response.streams()) {
    if (stream.outcome() != v1::ReportEventsResponse::Stream::ACCEPTED) return false;
  }
  return true;
}

void SimulatedWorker::ReportAsync(const v1::ReportEventsRequest& request, std::function<void(bool)> done) {
  context_ = Context();
  reported_.Clear();
  stub_->async()->ReportEvents(context_.get(), &request, &reported_,
                               [done = std::move(done)](grpc::Status status) { done(status.ok()); });
}

}  // namespace scalelab::bench
