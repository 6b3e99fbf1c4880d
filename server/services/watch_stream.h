// One WatchStudy call: what the core thread tells of a study, as fast as the client reads and no faster.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "scalelab/v1/study.grpc.pb.h"
#include "server/core/coordinator.h"

namespace scalelab::server {

class WatchStream final : public grpc::ServerWriteReactor<v1::WatchStudyResponse>,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  // `fill` reads the study from the database. The stream owns itself.
  static WatchStream* Start(Coordinator& coordinator, int64_t study_id,
                            std::function<absl::Status(v1::Study*)> fill);

 private:
  explicit WatchStream(std::function<absl::Status(v1::Study*)> fill) : fill_(std::move(fill)) {}
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  // Sends `response` now, or keeps it as the newest while another is on its way. False when the call is over.
  bool Offer(v1::WatchStudyResponse response, bool final);
  void Fail(const absl::Status& status);

  const std::function<absl::Status(v1::Study*)> fill_;
  std::shared_ptr<WatchStream> self_;  // until OnDone

  std::mutex mutex_;
  v1::WatchStudyResponse writing_;  // guarded by mutex_ while not writing, by gRPC while writing
  v1::WatchStudyResponse newest_;   // guarded by mutex_
  bool has_newest_ = false, busy_ = false, final_ = false, over_ = false, sent_spec_ = false;
};

}  // namespace scalelab::server
