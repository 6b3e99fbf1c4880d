// The requests of other threads: each posts a task to the core thread.
#include <algorithm>
#include <memory>
#include <utility>

#include "server/core/coordinator.h"
#include "server/core/ingest.h"

namespace scalelab::server {

template <typename T>
void Coordinator::PostRequest(absl::AnyInvocable<T(db::Micros, Effects&)> decide,
                              absl::AnyInvocable<void(T)> done, size_t weight, size_t runs) {
  auto shared = std::make_shared<absl::AnyInvocable<void(T)>>(std::move(done));
  Task task;
  task.decide = [decide = std::move(decide), shared](db::Micros now, Effects& fx) mutable -> Reply {
    return [result = decide(now, fx), shared](absl::Status durable) mutable {
      (*shared)(durable.ok() ? std::move(result) : T(std::move(durable)));
    };
  };
  task.refuse = [shared](const absl::Status& status) { (*shared)(status); };
  task.weight = weight;
  task.runs = runs;
  Post(std::move(task));
}

void Coordinator::Submit(NewStudy study, Done<int64_t> done) {
  const size_t runs = study.state->runs.size();
  PostRequest<absl::StatusOr<int64_t>>(
      [this, study = std::move(study)](db::Micros now, Effects& fx) mutable {
        return lifecycle_->Submit(std::move(study), now, fx);
      },
      std::move(done), /*weight=*/1, runs);
}

void Coordinator::CancelStudy(int64_t study_id, DoneStatus done) {
  PostRequest<absl::Status>(
      [this, study_id](db::Micros now, Effects& fx) { return lifecycle_->CancelStudy(study_id, now, fx); },
      std::move(done));
}

void Coordinator::CancelRun(int64_t study_id, int64_t run_id, DoneStatus done) {
  PostRequest<absl::Status>(
      [this, study_id, run_id](db::Micros now, Effects& fx) {
        return lifecycle_->CancelRun(study_id, run_id, now, fx);
      },
      std::move(done));
}

void Coordinator::DeleteStudy(int64_t study_id, DoneStatus done) {
  PostRequest<absl::Status>(
      [this, study_id](db::Micros, Effects& fx) { return lifecycle_->DeleteStudy(study_id, fx); },
      std::move(done));
}

void Coordinator::Retry(int64_t study_id, int64_t run_id, std::unique_ptr<LiveStudy> final_study,
                        int64_t final_changes, DoneStatus done) {
  const size_t runs = final_study == nullptr ? 0 : final_study->runs.size();
  PostRequest<absl::Status>(
      [this, study_id, run_id, final_study = std::move(final_study), final_changes](db::Micros now,
                                                                                    Effects& fx) mutable {
        return lifecycle_->Retry(study_id, run_id, std::move(final_study), final_changes, now, fx);
      },
      std::move(done), /*weight=*/1, runs);
}

void Coordinator::ResumeStudy(int64_t study_id, DoneStatus done) {
  PostRequest<absl::Status>(
      [this, study_id](db::Micros now, Effects& fx) { return lifecycle_->ResumeStudy(study_id, now, fx); },
      std::move(done));
}

void Coordinator::HoldStudy(int64_t study_id, DoneStatus done) {
  PostRequest<absl::Status>(
      [this, study_id](db::Micros now, Effects& fx) { return lifecycle_->HoldStudy(study_id, now, fx); },
      std::move(done));
}

void Coordinator::ReleaseStudy(int64_t study_id, DoneStatus done) {
  PostRequest<absl::Status>(
      [this, study_id](db::Micros now, Effects& fx) { return lifecycle_->ReleaseStudy(study_id, now, fx); },
      std::move(done));
}

void Coordinator::SetPriority(int64_t study_id, int priority, DoneStatus done) {
  PostRequest<absl::Status>(
      [this, study_id, priority](db::Micros now, Effects& fx) {
        return lifecycle_->SetPriority(study_id, priority, now, fx);
      },
      std::move(done));
}

void Coordinator::ReserveIds(const db::IdCounts& count, Done<db::FirstIds> done) {
  PostRequest<absl::StatusOr<db::FirstIds>>(
      [this, count](db::Micros, Effects&) -> absl::StatusOr<db::FirstIds> {
        return lifecycle_->ReserveIds(count);
      },
      std::move(done));
}

void Coordinator::SetDrain(bool on, std::string reason, Done<int> done) {
  PostRequest<absl::StatusOr<int>>(
      [this, on, reason = std::move(reason)](db::Micros now, Effects& fx) -> absl::StatusOr<int> {
        return lifecycle_->SetDrain(on, reason, now, fx);
      },
      std::move(done));
}

void Coordinator::Configure(const CoordinatorTuning& tuning) {
  PostEvent([this, tuning](db::Micros, Effects&) {
    static_cast<CoordinatorTuning&>(options_) = tuning;
    next_poll_ = std::min(next_poll_, steady_ + tuning.poll_interval);
    lifecycle_->Configure(tuning.policy, absl::ToInt64Microseconds(tuning.worker_timeout));
  });
}

void Coordinator::Report(std::string allocation_token, std::vector<ParsedBatch> batches,
                         Done<std::vector<v1::ReportEventsResponse::Stream>> done) {
  const size_t points = 1 + PointsOf(batches);
  PostRequest<absl::StatusOr<std::vector<v1::ReportEventsResponse::Stream>>>(
      [this, token = std::move(allocation_token), batches = std::move(batches)](
          db::Micros, Effects& fx) mutable { return lifecycle_->Ingest(token, std::move(batches), fx); },
      std::move(done), points);
}

void Coordinator::Synchronize(std::string allocation_token, v1::SynchronizeRequest request,
                              Done<v1::SynchronizeResponse> done) {
  auto shared = std::make_shared<Done<v1::SynchronizeResponse>>(std::move(done));
  Task task;
  task.decide = [this, token = std::move(allocation_token), request = std::move(request), shared](
                    db::Micros now, Effects& fx) mutable -> Reply {
    absl::Status observed = lifecycle_->Observe(token, request, now, fx);
    return [this, observed, token = std::move(token), node = request.node_index(),
            known = request.generation(), shared](absl::Status durable) mutable {
      if (!durable.ok() || !observed.ok()) return (*shared)(durable.ok() ? observed : durable);
      const auto it = state_.allocation_by_token.find(token);
      if (it == state_.allocation_by_token.end()) return (*shared)(AllocationOver());
      const LiveAllocation& allocation = *state_.allocation(it->second);
      // A worker has one call in flight. If there is an older one, the worker has abandoned it.
      const auto [first, last] = held_by_allocation_.equal_range(it->second);
      const auto older =
          std::find_if(first, last, [&](const auto& h) { return h.second->node_index == node; });
      if (older != last) Answer(older->second);
      if (known != allocation.generation) return (*shared)(lifecycle_->Desired(allocation, node));
      held_.push_back({steady_ + options_.long_poll, it->second, node, std::move(*shared)});
      held_by_allocation_.emplace(it->second, std::prev(held_.end()));
    };
  };
  task.refuse = [shared](const absl::Status& status) { (*shared)(status); };
  Post(std::move(task));
}

void Coordinator::Watch(int64_t study_id, Watcher watcher, DoneStatus not_live) {
  auto shared = std::make_shared<DoneStatus>(std::move(not_live));
  Task task;
  task.decide = [this, study_id, watcher = std::move(watcher), shared](db::Micros,
                                                                       Effects&) mutable -> Reply {
    return [this, study_id, watcher = std::move(watcher), shared](absl::Status durable) mutable {
      if (!durable.ok()) return (*shared)(durable);
      if (state_.study(study_id) == nullptr) return (*shared)(absl::NotFoundError("the study is not live"));
      watches_.push_back({study_id, 0, -absl::InfiniteDuration(), std::move(watcher)});
    };
  };
  task.refuse = [shared](const absl::Status& status) { (*shared)(status); };
  Post(std::move(task));
}

void Coordinator::Read(absl::AnyInvocable<void(const State*)> read) {
  auto shared = std::make_shared<absl::AnyInvocable<void(const State*)>>(std::move(read));
  Task task;
  task.decide = [this, shared](db::Micros, Effects&) -> Reply {
    return [this, shared](absl::Status) { (*shared)(unread_.empty() ? &state_ : nullptr); };
  };
  task.refuse = [shared](const absl::Status&) { (*shared)(nullptr); };
  Post(std::move(task));
}

}  // namespace scalelab::server
