#include "server/services/watch_hub.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/core/explain.h"
#include "server/rpc/reactors.h"

namespace scalelab::server {

WatchHub::WatchHub(Coordinator& coordinator, CallPool& pool, ReadFinal read_final, WatchLimits limits)
    : coordinator_(coordinator), pool_(pool), read_final_(std::move(read_final)), limits_(limits) {}

v1::WatchStudyResponse WatchHub::Describe(const LiveStudy& study, const State& state) {
  ++descriptions_;
  v1::WatchStudyResponse response;
  *response.mutable_study() = ToStudy(study.row, {study.counts.begin(), study.counts.end()}, false);
  for (const int64_t id : study.allocations) {
    const LiveAllocation& allocation = *state.allocation(id);
    const LiveAttempt* attempt = state.attempt(allocation.attempt_id);
    if (attempt == nullptr) continue;
    auto* progress = response.add_running();
    progress->set_run(RunName(study.row.id, attempt->row.run_id));
    *progress->mutable_key() = study.cells.Key(study.cell_of[attempt->position]);
    progress->set_repeat(study.runs[attempt->position].repeat);
    progress->set_attempt(attempt->row.number);
    progress->set_step(attempt->step);
    progress->set_total_steps(attempt->total_steps);
    if (attempt->train_loss) progress->set_train_loss(*attempt->train_loss);
  }
  if (response.running_size() > 0 || (study.queued.empty() && study.delayed.empty())) return response;
  response.set_waiting_reason(ExplainStudy(state, study, absl::ToUnixMicros(absl::Now())).front().message());
  return response;
}

std::shared_ptr<WatchStream> WatchHub::Open(const std::string& peer) {
  std::string why;
  {
    absl::MutexLock lock(&mutex_);
    int& of_peer = open_by_peer_[peer];
    if (open_ >= limits_.total)
      why = absl::StrCat("there are ", open_, " watches");
    else if (of_peer >= limits_.per_peer)
      why = absl::StrCat("this client has ", of_peer, " watches");
    ++open_;
    ++of_peer;
  }
  auto stream = WatchStream::Start([this, peer](WatchStream* ended) { Leave(peer, ended); });
  if (!why.empty()) {
    stream->Fail(MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_WATCHES",
                           absl::StrCat(why, ", the maximum; end another watch, or try again in 5 seconds")));
  }
  return stream;
}

void WatchHub::Join(int64_t study_id, std::shared_ptr<WatchStream> stream) {
  bool first = false;
  {
    absl::MutexLock lock(&mutex_);
    if (stream->over()) return;  // otherwise Leave will be called
    const auto [it, is_new] = watched_.try_emplace(study_id);
    it->second.emplace(stream.get(), stream);
    study_of_[stream.get()] = study_id;
    first = is_new;
  }
  if (!first) return DescribeTo(study_id, std::move(stream));
  coordinator_.Watch(
      study_id,
      [this, study_id](const LiveStudy& study, const State& state, bool final) {
        return Report(study_id, study, state, final);
      },
      [this, study_id](absl::Status not_live) { End(study_id, not_live); });
}

// Describes the current state, because the last report may be older than a change that the caller has made. All streams
// that join before the core thread answers share one description.
void WatchHub::DescribeTo(int64_t study_id, std::shared_ptr<WatchStream> stream) {
  {
    absl::MutexLock lock(&mutex_);
    const auto [joining, first] = joining_.try_emplace(study_id);
    joining->second.push_back(std::move(stream));
    if (!first) return;
  }
  coordinator_.Read([this, study_id](const State* state) {
    auto described = std::make_shared<WatchStream::State>();
    std::vector<std::shared_ptr<WatchStream>> streams;
    {
      absl::MutexLock lock(&mutex_);
      streams = std::move(joining_.extract(study_id).mapped());
      described->sequence = ++sequence_;
    }
    if (state == nullptr) {
      for (const auto& joined : streams) joined->Fail(NoState());
      return;
    }
    const LiveStudy* study = state->study(study_id);
    if (study == nullptr) return;  // the final state was reported
    described->response = Describe(*study, *state);
    pool_.Run([streams = std::move(streams), described = std::move(described)](const absl::Status&) {
      for (const auto& joined : streams) joined->Offer(described);
    });
  });
}

bool WatchHub::Report(int64_t study_id, const LiveStudy& study, const State& state, bool final) {
  auto described = std::make_shared<WatchStream::State>();
  {
    absl::MutexLock lock(&mutex_);
    const auto it = watched_.find(study_id);
    if (it == watched_.end()) return false;
    if (it->second.empty()) {
      watched_.erase(it);
      return false;
    }
    described->sequence = ++sequence_;
  }
  described->response = Describe(study, state);
  described->final = final;
  Streams streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = final ? Take(study_id) : watched_[study_id];
  }
  // If the pool is full, Run calls the function on this thread, so that no watcher misses the final state.
  pool_.Run([streams = std::move(streams), described = std::move(described)](const absl::Status&) {
    for (const auto& [key, stream] : streams) stream->Offer(described);
  });
  return true;
}

void WatchHub::End(int64_t study_id, const absl::Status& why) {
  Streams streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = Take(study_id);
  }
  if (!absl::IsNotFound(why)) {
    for (const auto& [key, stream] : streams) stream->Fail(why);
    return;
  }
  pool_.Run([this, study_id, streams = std::move(streams)](absl::Status status) {
    auto last = std::make_shared<WatchStream::State>();
    last->sequence = std::numeric_limits<int64_t>::max();
    last->final = true;
    if (status.ok())
      status = WithinMemory([&] { return read_final_(study_id, last->response.mutable_study()); });
    for (const auto& [key, stream] : streams) {
      if (status.ok())
        stream->Offer(last);
      else
        stream->Fail(status);
    }
  });
}

WatchHub::Streams WatchHub::Take(int64_t study_id) {
  const auto it = watched_.find(study_id);
  if (it == watched_.end()) return {};
  Streams streams = std::move(it->second);
  watched_.erase(it);
  for (const auto& [stream, shared] : streams) study_of_.erase(stream);
  return streams;
}

void WatchHub::Leave(const std::string& peer, WatchStream* stream) {
  std::shared_ptr<WatchStream> gone;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  --open_;
  if (--open_by_peer_[peer] == 0) open_by_peer_.erase(peer);
  const auto study = study_of_.find(stream);
  if (study == study_of_.end()) return;
  if (const auto watched = watched_.find(study->second); watched != watched_.end()) {
    if (auto node = watched->second.extract(stream)) gone = std::move(node.mapped());
  }
  study_of_.erase(study);
}

}  // namespace scalelab::server
