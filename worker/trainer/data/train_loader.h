// Prepares the batches of a run, or of an evaluation, ahead of time. A separate thread makes them and copies them to the
// device on a separate stream. Images are copied to a GPU as bytes, which the GPU normalizes and augments.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <semaphore>
#include <thread>
#include <vector>

#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/byte_batch.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/device/device_event.h"

namespace scalelab::trainer {

class TrainLoader {
 public:
  struct Options {
    int64_t batch_per_rank = 0;  // the largest batch of any step
    int64_t total_steps = 0;     // over all epochs
    bool augment = false;
    uint64_t seed = 0;
    at::MemoryFormat format = at::MemoryFormat::Contiguous;
    at::Device device = at::kCPU;
    int64_t first_step = 0;  // steps before it are not prepared
    int slots = 0;           // batches in memory, at most 8; 0: a number that suits the device
    // The type of images that the device converts from bytes; other images are float32.
    at::ScalarType type = at::kFloat;
    // Converts bytes. Null: the kernel of the device, if it has one; otherwise the host normalizes and augments.
    ImageKernel image_kernel = nullptr;
  };

  // The samples of a step. They stay valid until the next call for samples.
  struct Samples {
    std::span<const int32_t> numbers;
    int64_t epoch = 0;
  };
  // Returns the samples of a step. Called on the loader's thread with ascending steps.
  using Source = std::function<Samples(int64_t step)>;

  // `set` must outlive the loader.
  TrainLoader(const ImageSet& set, ShardedSampler sampler, const Options& options);
  TrainLoader(const ImageSet& set, Source source, const Options& options);
  ~TrainLoader();

  // Returns the batch of the next step, on the device. The batch stays valid until the next call; on a GPU,
  // for the work that is put on the current stream until then. May be called total_steps - first_step times. Throws an
  // exception of LoadBatch in the step of its batch.
  const Batch& Next();

 private:
  static constexpr int kMostSlots = 8;

  struct Slot {
    Batch host, device;                  // the same on a CPU
    ByteBatch host_bytes, device_bytes;  // of images that the device converts; the same on a CPU
    int64_t samples = 0;
    DeviceEvent copied;  // from host to device
    DeviceEvent used;    // by the step that trains on it
  };

  void Run();
  void AllocateSlot(Slot& slot) const;
  void Fill();
  void FillSlot(Slot& slot, const Samples& samples) const;

  const ImageSet& set_;
  const Source source_;
  Options options_;
  // On a CPU one slot is in use, one is ready and one is being written. The host may be some steps ahead
  // of a GPU.
  const int slot_count_;
  std::array<Slot, kMostSlots> slots_;
  std::counting_semaphore<kMostSlots + 1> free_, ready_{0};
  std::atomic<bool> stop_ = false;
  std::exception_ptr error_;  // why no batch follows the filled ones; set before ready_ is released
  std::atomic<int64_t> filled_ = 0;
  int64_t taken_ = 0;
  Batch part_;  // the used rows of a slot that is not full
  std::thread thread_;
};

}  // namespace scalelab::trainer
