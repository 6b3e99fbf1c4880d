#include "worker/trainer/data/train_loader.h"

#include <utility>

namespace scalelab::trainer {

TrainLoader::TrainLoader(const ImageSet& set, ShardedSampler sampler, const Options& options)
    : set_(set), sampler_(std::move(sampler)), options_(options) {
  for (Batch& slot : slots_) slot = AllocateBatch(options.batch_per_rank, options.format);
  thread_ = std::thread(&TrainLoader::Fill, this);
}

TrainLoader::~TrainLoader() {
  stop_ = true;
  free_.release();
  thread_.join();
}

const Batch& TrainLoader::Next() {
  if (taken_ > 0) free_.release();  // the batch handed out before
  ready_.acquire();
  return slots_[taken_++ % kSlots];
}

void TrainLoader::Fill() {
  std::vector<CropFlip> crops(options_.augment ? options_.batch_per_rank : 0);
  for (int64_t step = 0; step < options_.total_steps; ++step) {
    const int64_t epoch = step / sampler_.steps_per_epoch(), in_epoch = step % sampler_.steps_per_epoch();
    if (in_epoch == 0) sampler_.StartEpoch(epoch);
    free_.acquire();
    if (stop_) return;
    const std::span<const int32_t> samples = sampler_.Slice(in_epoch);
    for (size_t i = 0; i < crops.size(); ++i) crops[i] = DrawCropFlip(options_.seed, epoch, samples[i]);
    FillBatch(set_, samples, crops, slots_[step % kSlots]);
    ready_.release();
  }
}

}  // namespace scalelab::trainer
