// One WatchStudy call. Sends each state of the study to the client. If the client reads slowly, sends only
// the newest state.
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
    int64_t sequence = 0;  // increases with each state of a study
    bool final = false;
  };
  using SharedState = std::shared_ptr<const State>;

  // Starts the stream. The stream owns itself until the call has ended, and then calls `on_end` once.
  static std::shared_ptr<WatchStream> Start(std::function<void(WatchStream*)> on_end);

  // Adds the specification to the first response. Must be called before the first Offer.
  void SetSpec(v1::StudySpec spec) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the state. While a write is in flight, keeps only the newest state to send it later. Ignores a
  // state that is older than an earlier one. The call ends after a final state.
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
  std::shared_ptr<WatchStream> self_;  // set until OnDone

  absl::Mutex mutex_;
  std::unique_ptr<v1::StudySpec> spec_ ABSL_GUARDED_BY(mutex_);  // set until it is sent
  v1::WatchStudyResponse writing_;  // guarded by mutex_, or owned by gRPC while a write is in flight
  SharedState newest_ ABSL_GUARDED_BY(mutex_);    // state to send next; null if there is none
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;     // whether a write is in flight
  int64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;  // sequence number of the newest state
  bool final_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace scalelab::server
