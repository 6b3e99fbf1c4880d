#include "server/services/watch_stream.h"

#include <utility>

#include "proto/status.h"

namespace scalelab::server {

std::shared_ptr<WatchStream> WatchStream::Start(std::function<void(WatchStream*)> on_end) {
  std::shared_ptr<WatchStream> stream(new WatchStream(std::move(on_end)));
  stream->self_ = stream;
  return stream;
}

void WatchStream::SetSpec(v1::StudySpec spec) {
  absl::MutexLock lock(&mutex_);
  spec_ = std::make_unique<v1::StudySpec>(std::move(spec));
}

void WatchStream::Offer(SharedState state) {
  absl::MutexLock lock(&mutex_);
  if (over_ || final_ || state->sequence < sequence_) return;
  sequence_ = state->sequence;
  final_ = state->final;
  if (busy_)
    newest_ = std::move(state);
  else
    Write(state->response);
}

void WatchStream::Write(const v1::WatchStudyResponse& state) {
  busy_ = true;
  writing_ = state;
  if (spec_ != nullptr) writing_.mutable_study()->mutable_spec()->Swap(spec_.get());
  spec_.reset();
  StartWrite(&writing_);
}

void WatchStream::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (over_) return;
  over_ = true;
  Finish(ToGrpc(status));
}

bool WatchStream::over() {
  absl::MutexLock lock(&mutex_);
  return over_;
}

void WatchStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  busy_ = false;
  if (over_) return;
  if (ok && newest_ != nullptr) {
    const SharedState next = std::exchange(newest_, nullptr);
    Write(next->response);
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
  const std::shared_ptr<WatchStream> last = std::move(self_);
  on_end_(this);
}

}  // namespace scalelab::server
