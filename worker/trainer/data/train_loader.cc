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
  for (int i = 0; i < slot_count_; ++i) {
    Slot& slot = slots_[i];
    slot.host = AllocateBatch(options.batch_per_rank, set.shape, options.format, options.device.is_cuda());
    slot.device = slot.host;
    if (options.device.is_cuda()) {
      slot.device = {at::empty_like(slot.host.images, options.device),
                     at::empty_like(slot.host.labels, options.device)};
      slot.used = Moment(options.device);  // by earlier work in this memory
    }
  }
  thread_ = std::thread(&TrainLoader::Run, this);
}

TrainLoader::~TrainLoader() {
  stop_ = true;
  free_.release();
  thread_.join();
}

const Batch& TrainLoader::Next() {
  if (taken_ > 0) {  // the batch handed out before
    slots_[(taken_ - 1) % slot_count_].used = Moment(options_.device);
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
    const auto [samples, epoch] = source_(step);
    const Augmentation augmentation{options_.seed, epoch};
    Slot& slot = slots_[(step - options_.first_step) % slot_count_];
    slot.used.Wait();
    slot.samples = std::ssize(samples);
    LoadBatch(set_, samples, options_.augment ? &augmentation : nullptr, slot.host);
    if (options_.device.is_cuda()) {
      slot.device.images.copy_(slot.host.images, /*non_blocking=*/true);
      slot.device.labels.copy_(slot.host.labels, /*non_blocking=*/true);
      slot.copied = Moment(options_.device);
    }
    ++filled_;
    ready_.release();
  }
}

}  // namespace scalelab::trainer
