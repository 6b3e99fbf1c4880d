// Batches of a whole run, made one step ahead on a thread of its own.
#pragma once

#include <array>
#include <atomic>
#include <semaphore>
#include <thread>
#include <vector>

#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/sampler.h"

namespace scalelab::trainer {

class TrainLoader {
 public:
  struct Options {
    int64_t batch_per_rank = 0;
    int64_t total_steps = 0;  // over all epochs
    bool augment = false;
    uint64_t seed = 0;
    at::MemoryFormat format = at::MemoryFormat::Contiguous;
  };

  // `set` must outlive the loader.
  TrainLoader(const ImageSet& set, ShardedSampler sampler, const Options& options);
  ~TrainLoader();

  // The batch of the next step; it stays valid until the next call. At most total_steps calls.
  const Batch& Next();

 private:
  static constexpr int kSlots = 3;  // one in use, one ready, one being written

  void Fill();

  const ImageSet& set_;
  ShardedSampler sampler_;
  Options options_;
  std::array<Batch, kSlots> slots_;
  std::counting_semaphore<kSlots + 1> free_{kSlots}, ready_{0};
  std::atomic<bool> stop_ = false;
  int64_t taken_ = 0;
  std::thread thread_;
};

}  // namespace scalelab::trainer
