#include "server/services/watch_stream.h"

#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/core/explain.h"

namespace scalelab::server {
namespace {

v1::WatchStudyResponse Describe(const StudyState& study, const State& state) {
  v1::WatchStudyResponse response;
  *response.mutable_study() = ToStudy(study.row, {study.counts.begin(), study.counts.end()}, false);
  for (const int64_t id : study.allocations) {
    const AllocationState& allocation = *state.allocation(id);
    const AttemptState* attempt = state.attempt(allocation.attempt_id);
    if (attempt == nullptr) continue;
    auto* progress = response.add_running();
    progress->set_run(RunName(study.row.id, attempt->row.run_id));
    *progress->mutable_key() = study.cells[study.cell_of[attempt->position]].key;
    progress->set_repeat(study.runs[attempt->position].repeat);
    progress->set_attempt(attempt->row.number);
    progress->set_step(attempt->step);
    progress->set_total_steps(attempt->total_steps);
    if (attempt->train_loss) progress->set_train_loss(*attempt->train_loss);
  }
  if (response.running_size() > 0 || study.queued.empty()) return response;
  response.set_waiting_reason(ExplainStudy(state, study, absl::ToUnixMicros(absl::Now())).front().message());
  return response;
}

}  // namespace

WatchStream* WatchStream::Start(Coordinator& coordinator, int64_t study_id,
                                std::function<absl::Status(v1::Study*)> fill) {
  std::shared_ptr<WatchStream> stream(new WatchStream(std::move(fill)));
  stream->self_ = stream;
  coordinator.Watch(
      study_id,
      [stream](const StudyState& study, const State& state, bool final) {
        return stream->Offer(Describe(study, state), final);
      },
      [stream](absl::Status not_live) {
        v1::WatchStudyResponse last;
        if (absl::IsNotFound(not_live)) not_live = stream->fill_(last.mutable_study());
        if (not_live.ok())
          stream->Offer(std::move(last), true);
        else
          stream->Fail(not_live);
      });
  return stream.get();
}

bool WatchStream::Offer(v1::WatchStudyResponse response, bool final) {
  std::lock_guard lock(mutex_);
  if (over_) return false;
  if (!sent_spec_ && !response.study().has_spec()) {
    v1::Study stored;
    if (fill_(&stored).ok()) *response.mutable_study()->mutable_spec() = stored.spec();
  }
  sent_spec_ = true;
  final_ = final_ || final;
  if (busy_) {
    newest_ = std::move(response);
    has_newest_ = true;
    return true;
  }
  busy_ = true;
  writing_ = std::move(response);
  StartWrite(&writing_);
  return true;
}

void WatchStream::Fail(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  if (over_) return;
  over_ = true;
  Finish(ToGrpc(status));
}

void WatchStream::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  busy_ = false;
  if (over_) return;
  if (ok && has_newest_) {
    writing_ = std::move(newest_);
    has_newest_ = false;
    busy_ = true;
    StartWrite(&writing_);
  } else if (!ok || final_) {
    over_ = true;
    Finish(grpc::Status::OK);
  }
}

void WatchStream::OnCancel() {
  std::lock_guard lock(mutex_);
  if (over_) return;
  over_ = true;
  Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
}

void WatchStream::OnDone() {
  // The core thread may still hold the stream in a watcher; it hears that the call is over at its next Offer.
  const std::shared_ptr<WatchStream> last = std::move(self_);
  std::lock_guard lock(mutex_);
  over_ = true;
}

}  // namespace scalelab::server
