// One WatchStudy call. Sends each state of the study to the client, or only the newest one when the
// client reads slowly.
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "scalelab/v1/study.grpc.pb.h"

namespace scalelab::server {

class WatchStream final : public grpc::ServerWriteReactor<v1::WatchStudyResponse>,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  // A state of the study. The streams of one study share it.
  struct State {
    v1::WatchStudyResponse response;
    int64_t sequence = 0;  // grows from state to state of a study
    bool final = false;
  };
  using SharedState = std::shared_ptr<const State>;

  // The stream owns itself until the call is over. `on_end` is called once, when the call is over.
  static std::shared_ptr<WatchStream> Start(std::function<void(WatchStream*)> on_end);

  // The first response has this specification. Call it before the first Offer.
  void SetSpec(v1::StudySpec spec) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the state, or keeps it as the newest while a write is in flight. Ignores a state that is older than one
  // before. The call ends after a final state.
  void Offer(SharedState state) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  bool over() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit WatchStream(std::function<void(WatchStream*)> on_end) : on_end_(std::move(on_end)) {}
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(const v1::WatchStudyResponse& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(WatchStream*)> on_end_;
  std::shared_ptr<WatchStream> self_;  // until OnDone

  absl::Mutex mutex_;
  std::unique_ptr<v1::StudySpec> spec_ ABSL_GUARDED_BY(mutex_);  // until it is sent
  v1::WatchStudyResponse writing_;  // guarded by mutex_, or owned by gRPC while a write is in flight
  SharedState newest_ ABSL_GUARDED_BY(mutex_);    // null if it is sent
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;     // a write is in flight
  int64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;  // of the newest state
  bool final_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace scalelab::server
