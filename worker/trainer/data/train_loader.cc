#include "worker/trainer/data/train_loader.h"

#include <iterator>
#include <utility>

namespace scalelab::trainer {

namespace {

TrainLoader::Source SourceOf(ShardedSampler sampler) {
  return [sampler = std::move(sampler), begun = int64_t{-1}](int64_t step) mutable -> TrainLoader::Samples {
    const int64_t epoch = step / sampler.steps_per_epoch();
    if (epoch != begun) sampler.StartEpoch(epoch);
    begun = epoch;
    return {sampler.Slice(step % sampler.steps_per_epoch()), epoch};
  };
}

}  // namespace

TrainLoader::TrainLoader(const ImageSet& set, ShardedSampler sampler, const Options& options)
    : TrainLoader(set, SourceOf(std::move(sampler)), options) {}

TrainLoader::TrainLoader(const ImageSet& set, Source source, const Options& options)
    : set_(set),
      source_(std::move(source)),
      options_(options),
      slot_count_(options.slots > 0          ? options.slots
                  : options.device.is_cuda() ? kMostSlots
                                             : 3),
      free_(slot_count_) {
  if (set.shape.tokens > 0) {
    options_.image_kernel = nullptr;
  } else if (options_.image_kernel == nullptr) {
    options_.image_kernel = ImageKernelOf(options.device);
  }
  for (int i = 0; i < slot_count_; ++i) AllocateSlot(slots_[i]);
  thread_ = std::thread(&TrainLoader::Run, this);
}

void TrainLoader::AllocateSlot(Slot& slot) const {
  const at::Device device = options_.device;
  const int64_t size = options_.batch_per_rank;
  if (options_.image_kernel != nullptr) {
    const int64_t side = set_.shape.side;
    slot.host.labels = at::empty({size}, at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
    slot.device.images =
        at::empty({size, kChannels, side, side},
                  at::TensorOptions(device).dtype(options_.type).memory_format(options_.format));
    slot.host_bytes = AllocateByteBatch(size, set_.shape, at::kCPU, device.is_cuda());
    slot.device_bytes = device.is_cuda() ? AllocateByteBatch(size, set_.shape, device) : slot.host_bytes;
  } else {
    slot.host = AllocateBatch(size, set_.shape, options_.format, device.is_cuda());
    slot.device.images = device.is_cuda() ? at::empty_like(slot.host.images, device) : slot.host.images;
  }
  slot.device.labels = device.is_cuda() ? at::empty_like(slot.host.labels, device) : slot.host.labels;
  if (device.is_cuda()) slot.used = DeviceEvent(device);  // by earlier work in this memory
}

TrainLoader::~TrainLoader() {
  stop_ = true;
  free_.release();
  thread_.join();
}

const Batch& TrainLoader::Next() {
  if (taken_ > 0) {  // the batch handed out before
    slots_[(taken_ - 1) % slot_count_].used = DeviceEvent(options_.device);
    free_.release();
  }
  ready_.acquire();
  if (taken_ == filled_) std::rethrow_exception(error_);
  const Slot& slot = slots_[taken_++ % slot_count_];
  slot.copied.Block();
  if (slot.samples == options_.batch_per_rank) return slot.device;
  part_ = {slot.device.images.narrow(0, 0, slot.samples), slot.device.labels.narrow(0, 0, slot.samples)};
  return part_;
}

void TrainLoader::Run() {
  try {
    Fill();
  } catch (...) {
    error_ = std::current_exception();
    ready_.release();
  }
}

void TrainLoader::Fill() {
  const DeviceStream stream(options_.device);
  const StreamScope scope(stream);
  const at::NoGradGuard no_grad;
  for (int64_t step = options_.first_step; step < options_.total_steps; ++step) {
    free_.acquire();
    if (stop_) return;
    FillSlot(slots_[(step - options_.first_step) % slot_count_], source_(step));
    ++filled_;
    ready_.release();
  }
}

void TrainLoader::FillSlot(Slot& slot, const Samples& samples) const {
  const Augmentation drawn{options_.seed, samples.epoch};
  const Augmentation* const augmentation = options_.augment ? &drawn : nullptr;
  const bool bytes = options_.image_kernel != nullptr, gpu = options_.device.is_cuda();
  slot.used.Wait();
  slot.samples = std::ssize(samples.numbers);
  if (bytes) {
    LoadBytes(set_, samples.numbers, augmentation, slot.host_bytes, slot.host.labels);
  } else {
    LoadBatch(set_, samples.numbers, augmentation, slot.host);
  }
  const auto copy = [](at::Tensor& to, const at::Tensor& from) { to.copy_(from, /*non_blocking=*/true); };
  if (gpu) copy(slot.device.labels, slot.host.labels);
  if (gpu && bytes) {
    copy(slot.device_bytes.pixels, slot.host_bytes.pixels);
    copy(slot.device_bytes.crops, slot.host_bytes.crops);
  } else if (gpu) {
    copy(slot.device.images, slot.host.images);
  }
  if (bytes) ConvertBytes(set_, slot.device_bytes, slot.samples, slot.device.images, options_.image_kernel);
  if (gpu) slot.copied = DeviceEvent(options_.device);
}

}  // namespace scalelab::trainer
