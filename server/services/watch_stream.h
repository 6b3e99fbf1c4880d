// One WatchStudy call. Sends each state of the study to the client, or only the newest one when the
// client reads slowly.
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/services/reader_pool.h"

namespace scalelab::server {

class WatchStream final : public grpc::ServerWriteReactor<v1::WatchStudyResponse>,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  // `spec` goes into the first response. `read_final` reads the study from the database when it is not live;
  // it runs on a thread of `readers`. The stream owns itself until the call is over.
  static WatchStream* Start(Coordinator& coordinator, ReaderPool& readers, int64_t study_id,
                            v1::StudySpec spec, std::function<absl::Status(v1::Study*)> read_final);

 private:
  explicit WatchStream(v1::StudySpec spec) : spec_(std::move(spec)) {}
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends `response`, or keeps it as the newest while a write is in flight. Returns false when the
  // call is over.
  bool Offer(v1::WatchStudyResponse response, bool final) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<WatchStream> self_;  // until OnDone

  absl::Mutex mutex_;
  v1::StudySpec spec_ ABSL_GUARDED_BY(mutex_);  // until it is sent
  v1::WatchStudyResponse writing_;  // guarded by mutex_, or owned by gRPC while a write is in flight
  v1::WatchStudyResponse newest_ ABSL_GUARDED_BY(mutex_);
  bool has_newest_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // a write is in flight
  bool final_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool sent_spec_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace scalelab::server
