#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/train_loader.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

std::vector<int32_t> GlobalBatch(int ranks, int64_t epoch, int64_t step) {
  std::vector<int32_t> all;
  for (int r = 0; r < ranks; ++r) {
    ShardedSampler sampler(103, 12, r, ranks, 5);
    sampler.StartEpoch(epoch);
    const auto slice = sampler.Slice(step);
    EXPECT_EQ(slice.size(), static_cast<size_t>(12 / ranks));
    all.insert(all.end(), slice.begin(), slice.end());
  }
  return all;
}

TEST(ShardedSampler, GivesTheSameGlobalBatchWhateverTheNumberOfRanks) {
  for (int64_t step : {0, 3, 7}) {
    EXPECT_EQ(GlobalBatch(1, 2, step), GlobalBatch(2, 2, step));
    EXPECT_EQ(GlobalBatch(1, 2, step), GlobalBatch(4, 2, step));
  }
}

TEST(ShardedSampler, TakesNoSampleTwiceAndLeavesOutThePartialBatch) {
  ShardedSampler sampler(103, 12, 0, 1, 5);
  EXPECT_EQ(sampler.steps_per_epoch(), 8);
  std::set<int32_t> seen;
  sampler.StartEpoch(0);
  for (int64_t step = 0; step < 8; ++step) {
    for (int32_t sample : sampler.Slice(step)) {
      EXPECT_TRUE(seen.insert(sample).second);
      EXPECT_THAT(sample, testing::AllOf(testing::Ge(0), testing::Lt(103)));
    }
  }
  EXPECT_EQ(seen.size(), 96u);
}

TEST(ShardedSampler, KeepsThePartialBatchWhereEveryRankGetsASampleOfIt) {
  EXPECT_EQ(ShardedSampler(103, 12, 0, 8, 5, LastBatch::kKeep).steps_per_epoch(), 8) << "7 for 8 ranks";
  std::set<int32_t> seen;
  for (int r = 0; r < 4; ++r) {
    ShardedSampler sampler(103, 12, r, 4, 5, LastBatch::kKeep);
    EXPECT_EQ(sampler.steps_per_epoch(), 9);
    EXPECT_EQ(sampler.samples_per_epoch(), 103);
    EXPECT_EQ(sampler.GlobalBatch(7), 12);
    EXPECT_EQ(sampler.GlobalBatch(8), 7);
    sampler.StartEpoch(0);
    EXPECT_EQ(sampler.Slice(7).size(), 3u);
    EXPECT_EQ(sampler.Slice(8).size(), r == 0 ? 1u : 2u);
    for (int64_t step = 0; step < 9; ++step) {
      for (int32_t sample : sampler.Slice(step)) EXPECT_TRUE(seen.insert(sample).second);
    }
  }
  EXPECT_EQ(seen.size(), 103u);
  EXPECT_EQ(ShardedSampler(5, 12, 0, 4, 5).steps_per_epoch(), 0);
  EXPECT_EQ(ShardedSampler(5, 12, 0, 4, 5, LastBatch::kKeep).steps_per_epoch(), 1);
}

TEST(ShardedSampler, ShufflesAnewForEachEpochAndSeed) {
  EXPECT_NE(GlobalBatch(1, 0, 0), GlobalBatch(1, 1, 0));
  ShardedSampler a(1000, 10, 0, 1, 1), b(1000, 10, 0, 1, 2);
  a.StartEpoch(0), b.StartEpoch(0);
  EXPECT_FALSE(std::ranges::equal(a.Slice(0), b.Slice(0)));
}

TrainingSpec SyntheticSpec(int64_t samples) {
  TrainingSpec spec;
  spec.dataset = "synthetic", spec.train_samples = samples;
  return spec;
}

// Returns the batches of a run on `ranks` ranks. Those of a step are concatenated in the order of ranks.
std::vector<Batch> Batches(const ImageSet& set, int ranks, bool augment, at::MemoryFormat format) {
  std::vector<std::vector<Batch>> parts(5);
  for (int r = 0; r < ranks; ++r) {
    TrainLoader loader(set, ShardedSampler(set.size, 16, r, ranks, 9), {16 / ranks, 5, augment, 9, format});
    for (auto& part : parts) {
      const Batch& batch = loader.Next();
      part.push_back({batch.images.clone(), batch.labels.clone()});
    }
  }
  std::vector<Batch> result;
  for (auto& part : parts) {
    std::vector<at::Tensor> images, labels;
    for (Batch& batch : part) images.push_back(batch.images), labels.push_back(batch.labels);
    result.push_back({at::cat(images), at::cat(labels)});
  }
  return result;
}

TEST(TrainLoader, AugmentsASampleTheSameWayWhicheverRankTrainsOnIt) {
  const Dataset data = LoadDataset(SyntheticSpec(40));
  const auto one = Batches(data.train, 1, true, at::MemoryFormat::ChannelsLast);
  for (int ranks : {2, 4}) {
    const auto many = Batches(data.train, ranks, true, at::MemoryFormat::ChannelsLast);
    for (int step = 0; step < 5; ++step) {
      EXPECT_TRUE(one[step].images.equal(many[step].images));
      EXPECT_TRUE(one[step].labels.equal(many[step].labels));
    }
  }
  EXPECT_FALSE(one[0].images.equal(Batches(data.train, 1, false, at::MemoryFormat::ChannelsLast)[0].images));
}

TEST(TrainLoader, TakesTheSamplesOfASourceInTheirOrder) {
  const Dataset data = LoadDataset(SyntheticSpec(40));
  const std::vector<int32_t> samples = {7, 3, 39, 0, 12};
  TrainLoader loader(data.train,
                     [&](int64_t step) -> TrainLoader::Samples {
                       return {std::span(samples).subspan(step * 2, std::min<size_t>(2, 5 - step * 2))};
                     },
                     {.batch_per_rank = 2, .total_steps = 3, .slots = 2});
  std::vector<int64_t> labels, expected;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor& part = loader.Next().labels;
    for (int64_t i = 0; i < part.numel(); ++i) labels.push_back(part[i].item<int64_t>());
  }
  for (const int32_t sample : samples) expected.push_back(data.train.labels[sample]);
  EXPECT_EQ(labels, expected);
}

TEST(TrainLoader, GivesThePartialBatchItsOwnSize) {
  const Dataset data = LoadDataset(SyntheticSpec(40));
  ShardedSampler sampler(40, 16, 1, 2, 9, LastBatch::kKeep);  // 8, 8 and 4 samples on this rank
  TrainLoader loader(data.train, sampler, {8, 6, true, 9, at::MemoryFormat::ChannelsLast});
  for (int64_t step = 0; step < 6; ++step) {
    if (step % 3 == 0) sampler.StartEpoch(step / 3);
    const Batch& batch = loader.Next();
    const auto samples = sampler.Slice(step % 3);
    ASSERT_EQ(batch.images.size(0), std::ssize(samples));
    ASSERT_EQ(batch.labels.size(0), std::ssize(samples));
    for (size_t i = 0; i < samples.size(); ++i) {
      EXPECT_EQ(batch.labels[static_cast<int64_t>(i)].item<int64_t>(), data.train.labels[samples[i]]);
    }
  }
}

TEST(TrainLoader, WritesTheSameNumbersInBothMemoryFormats) {
  const Dataset data = LoadDataset(SyntheticSpec(40));
  const auto last = Batches(data.train, 1, true, at::MemoryFormat::ChannelsLast);
  const auto first = Batches(data.train, 1, true, at::MemoryFormat::Contiguous);
  EXPECT_EQ(last[0].images.stride(1), 1);
  EXPECT_EQ(first[0].images.stride(3), 1);
  for (int step = 0; step < 5; ++step) EXPECT_TRUE(last[step].images.equal(first[step].images));
}

TEST(TrainLoader, CanBeLeftBeforeItsEnd) {
  const Dataset data = LoadDataset(SyntheticSpec(40));
  TrainLoader loader(data.train, ShardedSampler(40, 4, 0, 1, 1),
                     {4, 1000, true, 1, at::MemoryFormat::Contiguous});
  loader.Next();
}

TEST(FillBatch, NormalisesCropsAndFlipsAsTensorOperationsDo) {
  const Dataset data = LoadDataset(SyntheticSpec(3));
  const std::vector<int32_t> samples = {2, 0, 1};
  const std::vector<CropFlip> crops = {{0, 8, true}, {4, 4, false}, {7, 1, false}};
  Batch batch = AllocateBatch(3, 32, at::MemoryFormat::ChannelsLast);
  FillBatch(data.train, samples, crops, batch);
  const at::Tensor mean = at::tensor({0.4914f, 0.4822f, 0.4465f}).view({3, 1, 1});
  const at::Tensor deviation = at::tensor({0.2470f, 0.2435f, 0.2616f}).view({3, 1, 1});
  for (int i = 0; i < 3; ++i) {
    const at::Tensor bytes =
        at::from_blob(const_cast<uint8_t*>(data.train.image(samples[i])), {3, 32, 32}, at::kByte);
    const at::Tensor padded =
        at::constant_pad_nd((bytes.to(at::kFloat) / 255 - mean) / deviation, {4, 4, 4, 4});
    at::Tensor expected = padded.narrow(1, crops[i].down, 32).narrow(2, crops[i].right, 32);
    if (crops[i].flip) expected = expected.flip({2});
    EXPECT_TRUE(at::allclose(batch.images[i], expected, 1e-6, 1e-6)) << i;
    EXPECT_EQ(batch.labels[i].item<int64_t>(), data.train.labels[samples[i]]);
  }
}

TEST(DrawCropFlip, CoversAllPlacesAndBothSides) {
  std::set<int> down, right, flip;
  for (int i = 0; i < 2000; ++i) {
    const CropFlip crop = DrawCropFlip(3, 1, i);
    down.insert(crop.down), right.insert(crop.right), flip.insert(crop.flip);
  }
  EXPECT_EQ(down.size(), 9u);
  EXPECT_EQ(right.size(), 9u);
  EXPECT_EQ(flip.size(), 2u);
}

class Cifar10Files : public testing::Test {
 protected:
  Cifar10Files() : dir_(testing::TempDir() + "/cifar-" + std::to_string(getpid())) {
    std::filesystem::create_directories(dir_);
  }
  ~Cifar10Files() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& name, int records, int first, int missing_bytes = 0, char label = 3) {
    std::string bytes;
    for (int r = 0; r < records; ++r) {
      bytes += label;
      bytes += std::string(ImageShape().bytes(), static_cast<char>(first + r));
    }
    std::ofstream(dir_ + "/" + name, std::ios::binary).write(bytes.data(), std::ssize(bytes) - missing_bytes);
  }
  std::string ErrorOfLoading(TrainingSpec spec) {
    try {
      LoadDataset(spec);
    } catch (const TrainerError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      return error.what();
    }
    return "no error";
  }
  TrainingSpec Spec() {
    TrainingSpec spec;
    spec.dataset = "cifar10", spec.data_dir = dir_, spec.evaluate = true;
    return spec;
  }

  std::string dir_;
};

TEST_F(Cifar10Files, AreReadInOrderUpToTheLimit) {
  Write("data_batch_1.bin", 5, 10);
  Write("data_batch_2.bin", 5, 50);
  Write("test_batch.bin", 2, 90);
  TrainingSpec spec = Spec();
  spec.train_samples = 7;
  const Dataset data = LoadDataset(spec);
  ASSERT_EQ(data.train.size, 7);
  EXPECT_EQ(data.train.image(4)[100], 14);
  EXPECT_EQ(data.train.image(6)[3071], 51);
  EXPECT_EQ(data.train.labels[6], 3);
  EXPECT_EQ(data.test.size, 2);
}

TEST_F(Cifar10Files, ShortByOneByteAreRefusedByName) {
  Write("data_batch_1.bin", 5, 10, 1);
  Write("test_batch.bin", 2, 90);
  EXPECT_THAT(ErrorOfLoading(Spec()), testing::HasSubstr("data_batch_1.bin"));
}

TEST_F(Cifar10Files, WithAnImpossibleLabelAreRefused) {
  Write("data_batch_1.bin", 5, 10, 0, 10);
  Write("test_batch.bin", 2, 90);
  EXPECT_THAT(ErrorOfLoading(Spec()), testing::HasSubstr("label 10"));
}

TEST(LoadDataset, ListsTheKnownNamesForAnUnknownOne) {
  TrainingSpec spec;
  spec.dataset = "imagenet";
  EXPECT_THROW(LoadDataset(spec), TrainerError);
}

}  // namespace
}  // namespace scalelab::trainer
