// The background thread that negotiates with the other ranks which tensors are ready, and reduces them while
// the rank computes.
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

#include "worker/trainer/device/device_event.h"
#include "worker/trainer/strategies/horovod/autotuner.h"
#include "worker/trainer/strategies/horovod/controller.h"
#include "worker/trainer/strategies/horovod/fusion_buffer.h"
#include "worker/trainer/strategies/horovod/gradient_averager.h"
#include "worker/trainer/strategies/horovod/timeline.h"

namespace scalelab::trainer::horovod {

// Cycles run only while a step is open, from Open to Close. At other times the caller may use the
// communicator. In Horovod, cycles also run between steps. The difference does not change performance,
// because no tensor is ready between steps. A cycle starts `cycle_seconds` after the previous one, or at once
// if this rank has closed its step.
//
// GPU tensors are packed and reduced on a separate stream, in parallel with the computation.
//
// Only one thread at a time may call the methods. If the background thread fails, the next Close, Join or
// Open throws its exception.
class BackgroundLoop {
 public:
  // All tensors are on `device`. Ranks negotiate over `control`, so that a negotiation does not wait for
  // earlier gradients on the device. If `control` is null, ranks negotiate over `communicator`. Collective.
  // Throws TrainerError if the timeline cannot be written.
  BackgroundLoop(Communicator& communicator, at::Device device, const Options& options,
                 std::unique_ptr<Communicator> control = nullptr);
  // Ends the thread after the current cycle.
  ~BackgroundLoop();

  // Begins a step. All ranks that have not joined must open the step, submit their tensors, and close it.
  void Open();
  // Replaces the tensor by its average over the ranks. The tensor must be dense, and must not be used until
  // Close returns. Ranks identify tensors by name. A name may occur once in each step.
  void Submit(std::string name, const at::Tensor& tensor);
  // Ends the submissions of this step. Blocks until all ranks have closed the step and all tensors are
  // reduced. Returns the averages of tensors that other ranks submitted and this rank did not, by name, as
  // flat tensors in memory order.
  std::vector<std::pair<std::string, at::Tensor>> Close();
  // Declares that this rank has no more steps. Participates in the steps of the other ranks with zeros, and
  // blocks until all ranks have joined. Then new steps may begin.
  void Join();

  // The following methods must not be called while a step is open. TakeSpans returns the times of reductions
  // since its last call.
  std::vector<Span> TakeSpans() { return std::exchange(spans_, {}); }
  const Counters& counters() const { return counters_; }
  Autotuner::Setting setting() const { return setting_; }

 private:
  struct Tensor {
    Request request;
    at::Tensor flat;
    Clock::time_point submitted;
    DeviceEvent ready;
  };

  void Thread();
  void RunSteps();
  bool RunCycle();
  void Reduce(const Response& response, Clock::time_point agreed);
  void Tune();
  void WaitUntilClosed(std::unique_lock<std::mutex>& lock);

  const std::unique_ptr<Communicator> own_control_;
  Communicator& control_;
  const at::Device device_;

  // Only the background thread uses these members. The caller may read them while no step is open.
  Counters counters_;
  Controller controller_;
  GradientAverager averager_;
  FusionBuffer buffer_;
  std::unique_ptr<Timeline> timeline_;    // on rank 0, if enabled
  std::unique_ptr<Autotuner> autotuner_;  // on rank 0, if enabled
  Autotuner::Setting setting_;
  bool tuning_;
  int64_t tuned_steps_ = 0;
  int64_t tuned_bytes_ = 0;            // of the current sample of the autotuner
  std::vector<double> tuned_seconds_;  // times of the steps of the current sample
  Clock::time_point tuned_until_;      // end of the last step
  Clock::time_point cycle_start_;
  std::map<std::string, Tensor> tensors_;  // tensors that are submitted and not yet reduced
  std::vector<std::pair<std::string, at::Tensor>> received_;
  std::vector<Span> spans_;

  std::mutex mutex_;  // guards the members below, except thread_
  std::condition_variable changed_;
  std::vector<Tensor> queue_;  // tensors submitted since the last cycle
  DeviceEvent reduced_;        // when all tensors of the last step were reduced
  bool open_ = false;          // whether a step is open
  bool closed_ = false;        // whether this rank submits nothing more in the step
  bool joined_ = false;        // whether this rank has no more steps
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // the last member, because it uses all others
};

}  // namespace scalelab::trainer::horovod
