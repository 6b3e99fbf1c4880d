#include "server/services/watch_stream.h"

#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/core/explain.h"

namespace scalelab::server {
namespace {

v1::WatchStudyResponse Describe(const LiveStudy& study, const State& state) {
  v1::WatchStudyResponse response;
  *response.mutable_study() = ToStudy(study.row, {study.counts.begin(), study.counts.end()}, false);
  for (const int64_t id : study.allocations) {
    const LiveAllocation& allocation = *state.allocation(id);
    const LiveAttempt* attempt = state.attempt(allocation.attempt_id);
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

WatchStream* WatchStream::Start(Coordinator& coordinator, ReaderPool& readers, int64_t study_id,
                                v1::StudySpec spec, std::function<absl::Status(v1::Study*)> read_final) {
  std::shared_ptr<WatchStream> stream(new WatchStream(std::move(spec)));
  stream->self_ = stream;
  coordinator.Watch(
      study_id,
      [stream](const LiveStudy& study, const State& state, bool final) {
        return stream->Offer(Describe(study, state), final);
      },
      [stream, &readers, read_final = std::move(read_final)](absl::Status not_live) {
        if (!absl::IsNotFound(not_live)) return stream->Fail(not_live);
        readers.Run([stream, read_final](absl::Status status) {
          v1::WatchStudyResponse last;
          if (status.ok()) status = read_final(last.mutable_study());
          if (!status.ok()) return stream->Fail(status);
          stream->Offer(std::move(last), true);
        });
      });
  return stream.get();
}

bool WatchStream::Offer(v1::WatchStudyResponse response, bool final) {
  absl::MutexLock lock(&mutex_);
  if (over_) return false;
  if (!sent_spec_) response.mutable_study()->mutable_spec()->Swap(&spec_);
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
  absl::MutexLock lock(&mutex_);
  if (over_) return;
  over_ = true;
  Finish(ToGrpc(status));
}

void WatchStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
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
  absl::MutexLock lock(&mutex_);
  if (over_) return;
  over_ = true;
  Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client has disconnected"));
}

void WatchStream::OnDone() {
  // The core thread may still have the stream in a watcher, which ends at its next Offer.
  const std::shared_ptr<WatchStream> last = std::move(self_);
  absl::MutexLock lock(&mutex_);
  over_ = true;
}

}  // namespace scalelab::server
