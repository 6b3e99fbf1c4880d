// The thread that agrees with the other ranks on what is ready, and reduces it while the rank computes.
#pragma once

#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/trainer/device/moment.h"
#include "worker/trainer/strategies/horovod/autotuner.h"
#include "worker/trainer/strategies/horovod/controller.h"
#include "worker/trainer/strategies/horovod/fusion_buffer.h"
#include "worker/trainer/strategies/horovod/gradient_averager.h"
#include "worker/trainer/strategies/horovod/timeline.h"

namespace scalelab::trainer::horovod {

// Cycles run only while a step is open, from Open to Close: outside of it the communicator belongs to the
// caller. That is the difference to Horovod, whose cycles never end, and costs nothing, since between steps
// no tensor is ready. A cycle starts `cycle_seconds` after the one before, or at once when the rank has
// closed its step, because then there is nothing to collect any more.
//
// Tensors of a GPU are packed and reduced on a stream of the loop's own, beside the computation.
//
// One thread at a time calls; a failure on the background thread is thrown by the next Close, Join or Open.
class BackgroundLoop {
 public:
  // `device` is that of all tensors. Collective. Throws TrainerError when the timeline cannot be written.
  BackgroundLoop(Communicator& communicator, at::Device device, const Options& options);
  // Ends the thread after the cycle that runs.
  ~BackgroundLoop();

  // A step begins. All ranks that have not joined must open, submit what they have, and close.
  void Open();
  // Replaces the tensor (dense, kept untouched until Close) by its average over the ranks. Names are those of
  // all ranks, each at most once a step.
  void Submit(std::string name, const at::Tensor& tensor);
  // Nothing more is submitted in this step. Returns when all ranks have closed and everything is reduced: the
  // averages of what others submitted and this rank did not, by name, as flat tensors in memory order.
  std::vector<std::pair<std::string, at::Tensor>> Close();
  // This rank has no more steps. Takes part with zeros in those of the others, and returns when all ranks
  // have joined; then steps may begin again.
  void Join();

  // Not while a step is open.
  const Counters& counters() const { return counters_; }
  Autotuner::Setting setting() const { return setting_; }

 private:
  struct Tensor {
    Request request;
    at::Tensor flat;
    Clock::time_point submitted;
    Moment ready;
  };

  void Thread();
  void RunSteps();
  bool RunCycle();
  void Reduce(const Response& response, Clock::time_point agreed);
  void Tune();
  void WaitUntilClosed(std::unique_lock<std::mutex>& lock);

  Communicator& communicator_;
  const at::Device device_;

  // The background thread's own; the caller may look at them while no step is open.
  Counters counters_;
  Controller controller_;
  GradientAverager averager_;
  FusionBuffer buffer_;
  std::unique_ptr<Timeline> timeline_;    // rank 0's, if asked for
  std::unique_ptr<Autotuner> autotuner_;  // rank 0's, if asked for
  Autotuner::Setting setting_;
  bool tuning_;
  int64_t tuned_steps_ = 0, tuned_bytes_ = 0;
  Clock::time_point sample_start_;
  Clock::time_point cycle_start_;
  std::map<std::string, Tensor> tensors_;  // submitted and not reduced yet
  std::vector<std::pair<std::string, at::Tensor>> received_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Tensor> queue_;
  Moment reduced_;  // everything of the last step is
  bool open_ = false, closed_ = false, joined_ = false, stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace scalelab::trainer::horovod
