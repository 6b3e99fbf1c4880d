#include "worker/trainer/strategies/horovod/background_loop.h"

#include <algorithm>

#include "worker/trainer/device/device.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer::horovod {
namespace {

constexpr int kStepsPerSample = 10;  // steps per sample of the autotuner

}  // namespace

BackgroundLoop::BackgroundLoop(Communicator& communicator, at::Device device, const Options& options,
                               std::unique_ptr<Communicator> control)
    : own_control_(std::move(control)),
      control_(own_control_ ? *own_control_ : communicator),
      device_(device),
      controller_(control_, options, counters_),
      averager_(communicator, options, counters_),
      setting_{options.fusion_bytes, options.cycle_seconds},
      tuning_(options.autotune) {
  if (communicator.rank() == 0) {
    if (!options.timeline_path.empty()) timeline_ = std::make_unique<Timeline>(options.timeline_path);
    if (options.autotune) autotuner_ = std::make_unique<Autotuner>(setting_);
  }
  thread_ = std::thread(&BackgroundLoop::Thread, this);
}

BackgroundLoop::~BackgroundLoop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundLoop::Open() {
  {
    std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    open_ = true;
    closed_ = false;
  }
  changed_.notify_all();
}

void BackgroundLoop::Submit(std::string name, const at::Tensor& tensor) {
  Tensor entry{{std::move(name), tensor.scalar_type(), tensor.sizes().vec()},
               FlatView(tensor),
               Clock::now(),
               DeviceEvent(device_)};
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(entry));
}

std::vector<std::pair<std::string, at::Tensor>> BackgroundLoop::Close() {
  std::unique_lock lock(mutex_);
  WaitUntilClosed(lock);
  // The tensors were allocated on the stream of the background thread, and the caller copies them on
  // its own stream.
  for (const auto& [name, tensor] : received_) KeepForCurrentStream(tensor);
  return std::exchange(received_, {});
}

void BackgroundLoop::Join() {
  std::unique_lock lock(mutex_);
  open_ = joined_ = true;
  WaitUntilClosed(lock);
  joined_ = false;
  received_.clear();
}

void BackgroundLoop::WaitUntilClosed(std::unique_lock<std::mutex>& lock) {
  closed_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !open_ || error_; });
  if (error_) std::rethrow_exception(error_);
  reduced_.Block();
}

void BackgroundLoop::Thread() {
  const DeviceStream stream(device_);
  const StreamScope scope(stream);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return open_ || stop_; });
    if (stop_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      RunSteps();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (!error) reduced_ = DeviceEvent(device_);
    error_ = error;
    open_ = false;
    changed_.notify_all();
    if (error_) return;
  }
}

// Runs one step. If this rank has joined, runs all remaining steps of the other ranks.
void BackgroundLoop::RunSteps() {
  cycle_start_ = Clock::now();
  if (tuned_steps_ == 0) tuned_until_ = cycle_start_;
  while (RunCycle()) continue;
}

// Returns false after the last cycle.
bool BackgroundLoop::RunCycle() {
  CycleInput input;
  std::vector<Tensor> fresh;
  {
    std::unique_lock lock(mutex_);
    const auto next = cycle_start_ + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(setting_.cycle_seconds));
    changed_.wait_until(lock, next, [&] { return closed_ || stop_; });
    if (stop_) return false;
    fresh.swap(queue_);
    input.closed = closed_;
    input.joined = joined_;
  }
  cycle_start_ = Clock::now();
  if (timeline_) timeline_->Mark("CYCLE_START", cycle_start_);
  for (Tensor& tensor : fresh) {
    input.fresh.push_back(tensor.request);
    tensors_[tensor.request.name] = std::move(tensor);
  }
  const bool joined = input.joined;
  const CycleResult result = controller_.Cycle(std::move(input), setting_.fusion_bytes, cycle_start_);
  const Clock::time_point agreed = Clock::now();
  for (const Response& response : result.responses) Reduce(response, agreed);
  if (!result.over) return true;
  if (tuning_) Tune();
  return joined && !result.all_joined;
}

void BackgroundLoop::Reduce(const Response& response, Clock::time_point agreed) {
  if (!response.error.empty()) throw TrainerError("native/horovod: " + response.error);
  std::vector<at::Tensor> flat;
  for (const Request& request : response.tensors) {
    const auto own = tensors_.find(request.name);
    if (own != tensors_.end()) {
      own->second.ready.Block();
      flat.push_back(own->second.flat);
    } else {
      flat.push_back(at::zeros({request.elements()}, at::TensorOptions(device_).dtype(request.type)));
      received_.emplace_back(request.name, flat.back());
    }
    counters_.bytes += request.bytes();
    tuned_bytes_ += request.bytes();
  }
  ++counters_.all_reduces;

  // A single tensor is reduced in place.
  const bool fused = flat.size() > 1;
  const Clock::time_point begin = Clock::now();
  const at::Tensor packed = fused ? buffer_.Pack(flat) : flat[0];
  const Clock::time_point copied_in = Clock::now();
  auto started = std::make_shared<const DeviceEvent>(device_);
  averager_.Average(packed);
  spans_.push_back({std::move(started), std::make_shared<const DeviceEvent>(device_)});
  const Clock::time_point reduced = Clock::now();
  if (fused) {
    FusionBuffer::Unpack(packed, flat);
    counters_.fused_tensors += std::ssize(flat);
  }
  const Clock::time_point end = Clock::now();

  for (const Request& request : response.tensors) {
    const auto own = tensors_.find(request.name);
    if (timeline_) {
      if (own != tensors_.end()) {
        timeline_->Span(request.name, "NEGOTIATE_ALLREDUCE", own->second.submitted, agreed);
      }
      timeline_->Span(request.name, "QUEUE", agreed, begin);
      if (fused) timeline_->Span(request.name, "MEMCPY_IN_FUSION_BUFFER", begin, copied_in);
      timeline_->Span(request.name, "ALLREDUCE", copied_in, reduced);
      if (fused) timeline_->Span(request.name, "MEMCPY_OUT_FUSION_BUFFER", reduced, end);
    }
    if (own != tensors_.end()) tensors_.erase(own);
  }
}

// Is called on all ranks after each step. Rank 0 scores the last steps and broadcasts the next setting.
void BackgroundLoop::Tune() {
  const Clock::time_point now = Clock::now();
  tuned_seconds_.push_back(std::chrono::duration<double>(now - std::exchange(tuned_until_, now)).count());
  if (++tuned_steps_ % kStepsPerSample != 0) return;
  const at::Tensor next = at::zeros({3}, at::kDouble);
  auto* values = static_cast<double*>(next.data_ptr());
  if (autotuner_) {
    // Use the median, because an evaluation or a checkpoint may come between two steps.
    const auto median = tuned_seconds_.begin() + kStepsPerSample / 2;
    std::ranges::nth_element(tuned_seconds_, median);
    const bool warming_up =
        tuned_steps_ == kStepsPerSample;  // slower: includes negotiation and the first use of memory
    if (!warming_up) autotuner_->Score(static_cast<double>(tuned_bytes_) / (kStepsPerSample * *median));
    const Autotuner::Setting setting = autotuner_->current();
    values[0] = static_cast<double>(setting.fusion_bytes);
    values[1] = setting.cycle_seconds;
    values[2] = autotuner_->done() ? 1 : 0;
  }
  control_.Broadcast(next, 0);
  setting_ = {static_cast<int64_t>(values[0]), values[1]};
  tuning_ = values[2] == 0;
  tuned_seconds_.clear();
  tuned_bytes_ = 0;
}

}  // namespace scalelab::trainer::horovod
