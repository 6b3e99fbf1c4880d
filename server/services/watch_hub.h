// All WatchStudy calls. The core thread describes a study once for all its watchers, and a pool
// sends the description.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/core/coordinator.h"
#include "server/rpc/call_pool.h"
#include "server/services/watch_stream.h"

namespace scalelab::server {

struct WatchLimits {
  int total = 1024;
  int per_peer = 128;
};

// May be used from any thread. All calls must have ended before the hub is destroyed.
class WatchHub {
 public:
  // Reads a study that is not live from the database.
  using ReadFinal = std::function<absl::Status(int64_t study_id, v1::Study* study)>;

  WatchHub(Coordinator& coordinator, CallPool& pool, ReadFinal read_final, WatchLimits limits = {});

  // Starts a call. If there are too many calls, the call fails with RESOURCE_EXHAUSTED.
  std::shared_ptr<WatchStream> Open(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the states of the study to `stream` until the study is final.
  void Join(int64_t study_id, std::shared_ptr<WatchStream> stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns how often a live study has been described. Each description takes time of the core thread.
  int64_t descriptions() const { return descriptions_; }

 private:
  using Streams = std::unordered_map<WatchStream*, std::shared_ptr<WatchStream>>;
  v1::WatchStudyResponse Describe(const LiveStudy& study, const State& state);
  // Sends the current state of a study that has other watchers.
  void DescribeTo(int64_t study_id, std::shared_ptr<WatchStream> stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends a state to all watchers of the study. The core thread calls this function. Returns false to
  // end the reports.
  bool Report(int64_t study_id, const LiveStudy& study, const State& state, bool final)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the calls that watch a study which is not live.
  void End(int64_t study_id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave(const std::string& peer, WatchStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);
  Streams Take(int64_t study_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Coordinator& coordinator_;
  CallPool& pool_;
  const ReadFinal read_final_;
  const WatchLimits limits_;
  std::atomic<int64_t> descriptions_ = 0;
  absl::Mutex mutex_;
  // The watchers of each study, while the coordinator reports its changes.
  std::unordered_map<int64_t, Streams> watched_ ABSL_GUARDED_BY(mutex_);
  // Watchers that wait for the description of DescribeTo, by study.
  std::unordered_map<int64_t, std::vector<std::shared_ptr<WatchStream>>> joining_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<WatchStream*, int64_t> study_of_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, int> open_by_peer_ ABSL_GUARDED_BY(mutex_);
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;  // sequence number of the newest state of all studies
};

}  // namespace scalelab::server
