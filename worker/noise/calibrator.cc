#include "worker/noise/calibrator.h"

#include <system_error>
#include <utility>

#include "worker/noise/calibration.h"
#include "worker/process/steady_time.h"

namespace scalelab::worker {

Calibrator::Calibrator(EventLoop& loop, std::vector<int> cpus)
    : loop_(loop), cpus_(std::move(cpus)), alive_(std::make_shared<bool>(true)) {}

Calibrator::~Calibrator() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Calibrator::Start(absl::Duration budget, std::function<void()> done) {
  done_ = std::move(done);
  const auto calibrate = [this, budget, alive = std::weak_ptr<bool>(alive_)] {
    v1::Calibration calibration = Calibrate(budget, cpus_, stop_);
    // The loop may call this function after the destructor has joined this thread, so check whether
    // the object exists.
    loop_.Post([this, alive, calibration = std::move(calibration)] {
      if (!alive.expired()) Finish(calibration);
    });
  };
  try {
    thread_ = std::thread(calibrate);
  } catch (const std::system_error&) {  // the limit of processes is reached, so the loop has to wait
    calibrate();
  }
}

bool Calibrator::Stale(absl::Duration interval) const {
  return !last_.has_value() || SteadyNow() - ended_at_ > interval;
}

void Calibrator::Finish(v1::Calibration calibration) {
  if (thread_.joinable()) thread_.join();
  last_ = std::move(calibration);
  ended_at_ = SteadyNow();
  std::exchange(done_, nullptr)();
}

}  // namespace scalelab::worker
