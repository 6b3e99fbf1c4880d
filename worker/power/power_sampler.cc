#include "worker/power/power_sampler.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace scalelab::worker {
namespace {

constexpr std::chrono::milliseconds kPeriod(100);

// Returns the time of the clock that ranks on this node use in events.
double UnixTime() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct PowerSampler::State {
  explicit State(PowerPlaces places) : source(std::move(places)) {}

  void Run();

  PowerSource source;  // of the thread
  std::mutex mutex;    // guards the members below
  std::condition_variable changed;
  bool running = false, stop = false;
  PowerDevices devices;
  std::shared_ptr<PowerHistory> history;  // null: nothing is recorded
};

void PowerSampler::State::Run() {
  std::shared_ptr<PowerHistory> selected;
  bool readable = false;
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return stop || history != nullptr; });
    if (stop) return;
    const std::shared_ptr<PowerHistory> current = history;
    const PowerDevices wanted = devices;
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    if (std::exchange(selected, current) != current) readable = source.Select(wanted);
    if (readable) current->Add(source.Read(UnixTime()));
    lock.lock();
    const auto over = [&] { return stop || history != current; };
    if (readable) {
      changed.wait_until(lock, begin + kPeriod, over);
    } else {
      changed.wait(lock, over);
    }
  }
}

PowerSampler::PowerSampler(PowerPlaces places) : state_(std::make_shared<State>(std::move(places))) {}

PowerSampler::~PowerSampler() {
  const std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_one();
}

std::shared_ptr<const PowerHistory> PowerSampler::Start(PowerDevices devices) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->running) {
    try {
      std::thread([state = state_] { state->Run(); }).detach();
      state_->running = true;
    } catch (const std::system_error&) {
      // The limit of processes is reached. This attempt has no measurements, and the next one tries again.
    }
  }
  state_->devices = std::move(devices);
  state_->history = std::make_shared<PowerHistory>();
  state_->changed.notify_one();
  return state_->history;
}

void PowerSampler::Stop(const std::shared_ptr<const PowerHistory>& history) {
  const std::lock_guard lock(state_->mutex);
  if (state_->history != history) return;
  state_->history.reset();
  state_->changed.notify_one();
}

}  // namespace scalelab::worker
