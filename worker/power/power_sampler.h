// Reads the devices of the current attempt ten times per second. It has its own thread, because a broken GPU
// may not answer for seconds.
#pragma once

#include <memory>

#include "worker/power/power_history.h"
#include "worker/power/power_source.h"

namespace scalelab::worker {

// All methods run on one thread.
class PowerSampler {
 public:
  explicit PowerSampler(PowerPlaces places = {});
  // The destructor does not wait for a device that does not answer.
  ~PowerSampler();
  PowerSampler(const PowerSampler&) = delete;
  PowerSampler& operator=(const PowerSampler&) = delete;

  // Starts to record an attempt. Ends the recording of the previous attempt.
  std::shared_ptr<const PowerHistory> Start(PowerDevices devices);
  // Ends this recording, unless another one was started after it.
  void Stop(const std::shared_ptr<const PowerHistory>& history);

 private:
  struct State;

  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
};

}  // namespace scalelab::worker
