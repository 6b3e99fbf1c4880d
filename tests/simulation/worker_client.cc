#include "tests/simulation/worker_client.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "server/core/ingest.h"

namespace scalelab::simulation {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(20);

using Streams = std::vector<v1::ReportEventsResponse::Stream>;

// Does what the service does with a ReportEvents.
void Report(Process& process, const std::string& allocation, const v1::ReportEventsRequest& request,
            const Network::Done<v1::ReportEventsResponse>& done) {
  std::vector<server::ParsedBatch> batches;
  for (const v1::EventBatch& batch : request.batches()) {
    auto parsed = server::ParseBatch(batch);
    if (!parsed.ok()) return done(parsed.status());
    batches.push_back(*std::move(parsed));
  }
  process.coordinator().Report(allocation, std::move(batches), [done](absl::StatusOr<Streams> streams) {
    if (!streams.ok()) return done(streams.status());
    v1::ReportEventsResponse response;
    for (auto& stream : *streams) *response.add_streams() = std::move(stream);
    done(std::move(response));
  });
}

// Makes the preparation of the attempt fail.
void FillDisk(const Desired& desired) {
  std::filesystem::create_directories(desired.directory() + "/launch.json.new/full");
}

}  // namespace

void WorkerClient::Synchronize(const v1::SynchronizeRequest& request, Synchronized done) {
  v1::SynchronizeRequest sent = request;
  sent.set_queue_limit(std::min(request.queue_limit(), worker_.queue_limit()));
  // Makes the coordinator assign runs ahead, whatever their time.
  for (auto& attempt : *sent.mutable_attempts()) {
    if (attempt.run_seconds() > 0) attempt.set_run_seconds(0.001);
  }
  const uint64_t number = ++number_;
  polls_[number] = std::move(done);
  worker_.NoteCall();
  worker_.site().network.Call<v1::SynchronizeResponse>(
      worker_.node(), kDeadline,
      [allocation = worker_.allocation(), sent = std::move(sent), killed = worker_.timers().Killed(),
       &model = worker_.site().model](Process& process, Network::Done<v1::SynchronizeResponse> answer) {
        if (killed()) return;  // the connection is closed
        model.WorkerReports(allocation, sent.node_index());
        process.coordinator().Synchronize(allocation, sent, std::move(answer));
      },
      [this, number, alive = std::weak_ptr<int>(alive_)](absl::StatusOr<v1::SynchronizeResponse> response) {
        if (alive.expired()) return;
        worker_.timers().Bind([this, number, alive, response = std::move(response)] {
          if (!alive.expired()) OnSynchronized(number, response);
        })();
      });
}

void WorkerClient::OnSynchronized(uint64_t number, const absl::StatusOr<v1::SynchronizeResponse>& response) {
  const auto poll = polls_.find(number);
  if (poll == polls_.end()) return;  // it was cancelled
  const Synchronized done = std::move(poll->second);
  polls_.erase(poll);
  if (response.ok()) {
    for (const Desired& desired : response->attempts()) Learn(desired);
  }
  if (absl::IsUnauthenticated(response.status()) || absl::IsPermissionDenied(response.status()))
    worker_.NoteSilence();
  done(response);
  worker_.Rearm();
}

// Checks and records an attempt that the worker has received.
void WorkerClient::Learn(const Desired& desired) {
  World& world = worker_.site().world;
  const auto& nodes = desired.nodes();
  if (std::find(nodes.begin(), nodes.end(), worker_.node()) == nodes.end())
    world.Violation("attempt ", desired.token(), " is sent to ", worker_.node(),
                    ", which is none of its nodes");
  const bool first = worker_.site().attempts.emplace(desired.token(), desired).second;
  if (first && world.faults.Occurs(Fault::kStorageError)) FillDisk(desired);
}

void WorkerClient::CancelSynchronize() {
  worker_.NoteSilence();
  for (const auto& [number, done] : std::exchange(polls_, {})) {
    worker_.timers().After(worker_.site().world.random.Time(absl::ZeroDuration(), absl::Milliseconds(1)),
                           [this, done = done, alive = std::weak_ptr<int>(alive_)] {
                             if (alive.expired()) return;
                             done(absl::CancelledError());
                             worker_.Rearm();
                           });
  }
}

void WorkerClient::ReportEvents(const v1::ReportEventsRequest& request, Reported done) {
  worker_.site().network.Call<v1::ReportEventsResponse>(
      worker_.node(), kDeadline,
      [allocation = worker_.allocation(), request, killed = worker_.timers().Killed()](
          Process& process, Network::Done<v1::ReportEventsResponse> answer) {
        if (!killed()) Report(process, allocation, request, answer);
      },
      [this, request, done = std::move(done),
       alive = std::weak_ptr<int>(alive_)](absl::StatusOr<v1::ReportEventsResponse> answer) {
        if (alive.expired()) return;
        worker_.timers().Bind([this, request, done, alive, answer = std::move(answer)] {
          if (alive.expired()) return;
          for (int i = 0; answer.ok() && i < answer->streams_size(); ++i) {
            const auto& state = answer->streams(i);
            if (state.outcome() != v1::ReportEventsResponse::Stream::FENCED)
              worker_.site().model.LinesAcknowledged(request.batches(i).token(), state.rank(), state.line());
          }
          done(answer);
          worker_.Rearm();
        })();
      });
}

}  // namespace scalelab::simulation
