// Batches of a whole run, made ahead on a thread of its own, and brought to the device from there on a stream
// of its own.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <semaphore>
#include <thread>
#include <vector>

#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/device/moment.h"

namespace scalelab::trainer {

class TrainLoader {
 public:
  struct Options {
    int64_t batch_per_rank = 0;  // at most, of any step
    int64_t total_steps = 0;     // over all epochs
    bool augment = false;
    uint64_t seed = 0;
    at::MemoryFormat format = at::MemoryFormat::Contiguous;
    at::Device device = at::kCPU;
  };

  // `set` must outlive the loader.
  TrainLoader(const ImageSet& set, ShardedSampler sampler, const Options& options);
  ~TrainLoader();

  // The batch of the next step, on the device; it stays valid until the next call, on a GPU for what the
  // current stream is given until then. At most total_steps calls. Throws what LoadBatch threw, in the step
  // that the batch was for.
  const Batch& Next();

 private:
  static constexpr int kMostSlots = 8;

  struct Slot {
    Batch host, device;  // the same on a CPU
    int64_t samples = 0;
    Moment copied;  // from host to device
    Moment used;    // by the step that got it
  };

  void Run();
  void Fill();

  const ImageSet& set_;
  ShardedSampler sampler_;
  Options options_;
  // On a CPU one is in use, one ready, one being written. The host may be some steps ahead of a GPU.
  const int slot_count_;
  std::array<Slot, kMostSlots> slots_;
  std::counting_semaphore<kMostSlots + 1> free_, ready_{0};
  std::atomic<bool> stop_ = false;
  std::exception_ptr error_;  // why there is no batch after the filled ones; set before ready_ is released
  std::atomic<int64_t> filled_ = 0;
  int64_t taken_ = 0;
  Batch part_;  // of a slot that is not full
  std::thread thread_;
};

}  // namespace scalelab::trainer
