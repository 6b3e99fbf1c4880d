// The processes that a simulated worker starts and ends: the ranks of attempts, which srun launches on all nodes of a job.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tests/simulation/worker.h"
#include "worker/process/process.h"
#include "worker/process/tagged_processes.h"

namespace scalelab::simulation {

// Starts Ranks in place of srun. They outlive this object.
class WorkerProcesses final : public worker::Processes {
 public:
  // `worker` must outlive this object.
  explicit WorkerProcesses(Worker& worker) : worker_(worker) {}

  uint64_t Start(const worker::Job& job, Started started, Ended ended) override;
  void Notify(uint64_t id) override;
  void Stop(uint64_t id, absl::Duration grace) override;

  // The ranks of an attempt on this node, whoever has launched them. `tag`: "NAME=value".
  static std::unique_ptr<worker::TaggedProcesses> Tagged(Worker& worker, worker::EventLoop& loop,
                                                         const std::string& tag);

 private:
  struct Running {
    std::string token;
    Started started;
    Ended ended;
    bool stopped = false;
    std::shared_ptr<Ranks> ranks = nullptr;  // null before the launch
  };

  void Launch(uint64_t id);
  void CheckTurn(const Desired& desired);
  void End(uint64_t id, int status);

  Worker& worker_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Running> jobs_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace scalelab::simulation
