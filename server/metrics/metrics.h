// The metrics of the service, for Prometheus. No label has the name of a user, a study or a run: the number of series does
// not grow with use.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "server/core/observer.h"
#include "server/core/state.h"

namespace scalelab::server {

// May be used from any thread. A call waits for another call only for the time of copying some numbers.
class Metrics final : public CoreObserver {
 public:
  explicit Metrics(const std::string& version);

  void Committed(const db::WriteBatch& batch, absl::Duration took, const absl::Status& status) override;
  void SchedulerCalled(SchedulerCall call, absl::Duration took, const absl::Status& status) override;
  // A call of `method` ("/scalelab.v1.StudyService/GetStudy") has ended with this code. Methods that are not part of the
  // API count as "other".
  void RpcEnded(const std::string& method, int code, absl::Duration took);
  // Stores the numbers of runs, studies, allocations and workers in the state.
  void SetState(const State& state);
  // Stores the sizes of the database's files and the space on its disk, unless one of them is not known.
  void SetDatabase(const std::string& path);
  void SetPools(const std::vector<std::pair<std::string, size_t>>& queued);
  void SetConnections(int open) { connections_->Set(open); }
  void SetNotices(int64_t pending, int64_t given_up);
  // `problem` is empty, or one of Watchdog's checks that fails.
  void SetProblem(const std::string& problem);

  // Returns all metrics in the text format of Prometheus.
  std::string Text();

 private:
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  using Histogram = prometheus::Histogram;
  struct Rpc {
    std::array<Counter*, 17> ended{};  // by gRPC status code
    Histogram* seconds = nullptr;      // null for streams
  };

  Gauge* AddGauge(const std::string& name, const std::string& help);
  prometheus::Family<Gauge>& Gauges(const std::string& name, const std::string& help);
  prometheus::Family<Counter>& Counters(const std::string& name, const std::string& help);
  prometheus::Family<Histogram>& Histograms(const std::string& name, const std::string& help);
  void AddRpcs();
  void AddCore();
  void SetProcess();

  prometheus::Registry registry_;
  // Owned by the registry.
  std::map<std::string, Rpc, std::less<>> rpcs_;  // by method; constant after the constructor
  Rpc other_rpcs_;
  std::array<Counter*, 2> commits_{};  // ok, error
  Histogram* commit_seconds_ = nullptr;
  Counter* points_ = nullptr;
  std::array<Counter*, 2> attempts_started_{};  // first, retry
  std::vector<Counter*> attempts_ended_;        // by db::Cause
  std::array<std::array<Counter*, 2>, 4> scheduler_calls_{};
  std::array<Histogram*, 4> scheduler_seconds_{};
  Gauge* last_poll_ = nullptr;
  std::map<std::string, Gauge*> runs_, studies_, allocations_, attempts_, problems_;
  Gauge *workers_ = nullptr, *waiting_ = nullptr, *scheduler_failing_ = nullptr, *sampled_ = nullptr;
  Gauge *connections_ = nullptr, *database_ = nullptr, *wal_ = nullptr, *disk_free_ = nullptr,
        *disk_ = nullptr;
  Gauge *notices_pending_ = nullptr, *notices_given_up_ = nullptr;
  prometheus::Family<Gauge>* pools_ = nullptr;
  Gauge *memory_ = nullptr, *files_ = nullptr;
  Counter* cpu_ = nullptr;
};

}  // namespace scalelab::server
