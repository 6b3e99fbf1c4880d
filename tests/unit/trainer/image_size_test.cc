// Tests images of other sizes than CIFAR's.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/unit/trainer/small_model.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/loop/evaluation.h"

namespace scalelab::trainer {
namespace {

Dataset Synthetic(int64_t image_size, int64_t classes, int64_t samples, bool with_test = false) {
  TrainingSpec spec;
  spec.dataset = "synthetic", spec.image_size = image_size, spec.classes = classes;
  spec.train_samples = samples, spec.evaluate = with_test;
  return LoadDataset(spec);
}

// Returns the FNV-1a hash of the labels and bytes of the first images.
uint64_t Hash(const ImageSet& set, int64_t images) {
  uint64_t hash = 14695981039346656037u;
  auto add = [&](uint64_t byte) { hash = (hash ^ byte) * 1099511628211u; };
  for (int64_t i = 0; i < images; ++i) {
    add(set.labels[i]);
    for (int64_t p = 0; p < set.shape.bytes(); ++p) add(set.image(i)[p]);
  }
  return hash;
}

TEST(SyntheticImages, OfTheDefaultShapeAreWhatTheyAlwaysWere) {
  const Dataset data = Synthetic(0, 0, 0, true);
  EXPECT_EQ(data.train.size, 50'000);
  EXPECT_EQ(data.test.size, 10'000);
  EXPECT_EQ(data.train.shape.side, 32);
  EXPECT_EQ(data.train.shape.classes, 10);
  EXPECT_EQ(Hash(data.train, 40), 0x00c77d334643f079u);
  EXPECT_EQ(Hash(data.test, 10), 0xe0a71d90947c8418u);
  EXPECT_EQ(Hash(Synthetic(32, 10, 40).train, 40), 0x00c77d334643f079u);
}

TEST(SyntheticImages, OfAThousandClassesShowTheirClassInSquaresOfEightPixels) {
  for (int side : {64, 20, 9}) {  // 20 and 9 are not multiples of 8, and neither is 9 x 9 x 3
    const ImageSet set = Synthetic(side, 1000, 3000).train;
    ASSERT_EQ(set.shape.side, side);
    ASSERT_EQ(set.size, 3000);
    // Minimum and maximum of each square of each class, over all of its images. Noise is from 0 to 127.
    const int across = (side + 7) / 8, squares = 3 * across * across;
    std::vector<int> lowest(1000 * squares, 255), highest(1000 * squares, 0);
    std::vector<int> images(1000);
    for (int64_t i = 0; i < set.size; ++i) {
      ASSERT_LT(set.labels[i], 1000);
      ++images[set.labels[i]];
      const uint8_t* pixel = set.image(i);
      for (int c = 0; c < 3; ++c) {
        for (int y = 0; y < side; ++y) {
          for (int x = 0; x < side; ++x, ++pixel) {
            const int square = set.labels[i] * squares + (c * across + y / 8) * across + x / 8;
            lowest[square] = std::min<int>(lowest[square], *pixel);
            highest[square] = std::max<int>(highest[square], *pixel);
          }
        }
      }
    }
    EXPECT_GT(std::ranges::count_if(images, [](int count) { return count > 1; }), 700);
    std::set<int> values;
    for (size_t s = 0; s < lowest.size(); ++s) {
      if (images[s / squares] == 0) continue;
      ASSERT_LE(highest[s] - lowest[s], 127) << side << " " << s;
      ASSERT_GE(lowest[s], 32) << side << " " << s;
      values.insert(lowest[s]);
    }
    EXPECT_GT(values.size(), 60u) << "patterns differ";
  }
}

TEST(SyntheticImages, TakeNoMoreMemoryThanIsAskedFor) {
  const Dataset data = Synthetic(1024, 10, 0, true);  // 3 MiB each
  EXPECT_EQ(data.train.size, 66);
  EXPECT_EQ(data.test.size, 13);
  EXPECT_EQ(Synthetic(1024, 10, 70).train.size, 70);
  EXPECT_EQ(Synthetic(8, 10, 60'000).train.size, 50'000);
}

TEST(Cifar10, HasItsOwnSizeAndClasses) {
  TrainingSpec spec;
  spec.dataset = "cifar10", spec.image_size = 64;
  EXPECT_THROW(LoadDataset(spec), TrainerError);
  spec.image_size = 0, spec.classes = 100;
  EXPECT_THROW(LoadDataset(spec), TrainerError);
}

class FillBatchOfSize : public testing::TestWithParam<int> {};

TEST_P(FillBatchOfSize, PadsByFourCropsAndFlipsAsTensorOperationsDo) {
  const int side = GetParam();
  const ImageSet set = Synthetic(side, 1000, 3).train;
  const std::vector<int32_t> samples = {2, 0, 1};
  const std::vector<CropFlip> crops = {{0, 8, true}, {4, 4, false}, {7, 1, false}};
  const at::Tensor mean = at::tensor({0.4914f, 0.4822f, 0.4465f}).view({3, 1, 1});
  const at::Tensor deviation = at::tensor({0.2470f, 0.2435f, 0.2616f}).view({3, 1, 1});
  for (at::MemoryFormat format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    Batch batch = AllocateBatch(3, side, format);
    FillBatch(set, samples, crops, batch);
    for (int i = 0; i < 3; ++i) {
      const at::Tensor bytes =
          at::from_blob(const_cast<uint8_t*>(set.image(samples[i])), {3, side, side}, at::kByte);
      const at::Tensor padded =
          at::constant_pad_nd((bytes.to(at::kFloat) / 255 - mean) / deviation, {4, 4, 4, 4});
      at::Tensor expected = padded.narrow(1, crops[i].down, side).narrow(2, crops[i].right, side);
      if (crops[i].flip) expected = expected.flip({2});
      EXPECT_TRUE(at::allclose(batch.images[i], expected, 1e-6, 1e-6)) << i;
      EXPECT_EQ(batch.labels[i].item<int64_t>(), set.labels[samples[i]]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FillBatchOfSize, testing::Values(8, 9, 64, 224));

TEST(Evaluate, TakesLargeImagesInSmallerBatchesEveryOneOnce) {
  const ImageSet set = Synthetic(256, 4, 37).train;  // 16 in a batch
  const auto model = EqualModels(1)[0];
  std::vector<int32_t> samples(37);
  std::iota(samples.begin(), samples.end(), 0);
  Batch all = AllocateBatch(37, 256, at::MemoryFormat::ChannelsLast);
  FillBatch(set, samples, {}, all);
  const at::NoGradGuard no_grad;
  const at::Tensor logits = model->forward(all.images);

  SoloCommunicator communicator;
  const Evaluation evaluation =
      Evaluate(*model, set, Precision::kFp32, at::kCPU, at::MemoryFormat::ChannelsLast, communicator);
  EXPECT_EQ(evaluation.samples, 37);
  EXPECT_NEAR(evaluation.loss, at::cross_entropy_loss(logits, all.labels).item<double>(), 1e-5);
  EXPECT_NEAR(evaluation.accuracy, CountCorrect(logits, all.labels).item<double>() / 37, 1e-12);
}

}  // namespace
}  // namespace scalelab::trainer
