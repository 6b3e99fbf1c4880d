// Tests training on image files.
#include "worker/trainer/data/image_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <set>

#include "tests/fakes/host_kernels.h"
#include "tests/fakes/image_folder.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/data/train_loader.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/loop/evaluation.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr Augmentation kAugmentation{5, 2};

class ImageFilesTest : public testing::Test {
 protected:
  ImageFilesTest() : dir_(testing::TempDir() + "/image-files-" + std::to_string(getpid())) {
    std::filesystem::remove_all(dir_);
    MakeImageFolder(dir_, 10, 4);
  }
  ~ImageFilesTest() override { std::filesystem::remove_all(dir_); }

  TrainingSpec Spec(int64_t side = 48, int64_t cpus = 1) const {
    TrainingSpec spec;
    spec.dataset = "imagefolder", spec.data_dir = dir_, spec.image_size = side, spec.cpus_per_rank = cpus;
    spec.evaluate = true;
    return spec;
  }
  std::string ErrorOf(const TrainingSpec& spec) const {
    try {
      LoadDataset(spec);
    } catch (const TrainerError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      return error.what();
    }
    return "no error";
  }
  const std::string dir_;
};

// Returns the batch as colors from 0 to 255, [n, side, side, 3].
at::Tensor Colours(const at::Tensor& images) {
  const at::Tensor mean = at::tensor({0.485f, 0.456f, 0.406f}),
                   deviation = at::tensor({0.229f, 0.224f, 0.225f});
  return (images.permute({0, 2, 3, 1}) * deviation + mean) * 255;
}

// Returns a crop of the image, which is decoded at full size and then resized.
at::Tensor Reference(const std::string& path, const ImagePiece& piece, int side) {
  const absl::StatusOr<Image> image = DecodeImage(*ReadFile(path));
  EXPECT_TRUE(image.ok()) << path << ": " << image.status();
  at::Tensor out = at::empty({side, side, 3}, at::kByte);
  ResizeRegion(*image, piece.region, side, out.data_ptr<uint8_t>());
  out = out.to(at::kFloat);
  return piece.flip ? out.flip({1}) : out;
}

TEST_F(ImageFilesTest, AreThePiecesOfFullyDecodedImagesWithinWhatScalingCosts) {
  for (int side : {16, 48, 100}) {
    const Dataset data = LoadDataset(Spec(side));
    ASSERT_EQ(data.train.size, 30);
    EXPECT_EQ(data.train.shape.classes, 3);
    EXPECT_EQ(data.train.shape.side, side);
    std::vector<int32_t> samples(30);
    std::iota(samples.begin(), samples.end(), 0);
    for (const Augmentation* augmentation : {static_cast<const Augmentation*>(nullptr), &kAugmentation}) {
      Batch batch = AllocateBatch(30, side, at::MemoryFormat::ChannelsLast);
      LoadBatch(data.train, samples, augmentation, batch);
      const at::Tensor found = Colours(batch.images);
      double sum = 0, mirrored = 0;
      for (int i = 0; i < 30; ++i) {
        const std::string path = data.train.files->path(i);
        const ImageSize size = *ReadImageSize(*ReadFile(path));
        const at::Tensor expected = Reference(
            path, augmentation != nullptr ? DrawPiece(*augmentation, i, size) : MiddlePiece(size), side);
        const double deviation = (found[i] - expected).abs().mean().item<double>();
        EXPECT_LT(deviation, 3) << path << " at " << side;
        sum += deviation;
        mirrored += (found[i] - expected.flip({1})).abs().mean().item<double>();
        EXPECT_EQ(batch.labels[i].item<int64_t>(), i / 10);
      }
      std::printf("%d pixels, %s: mean deviation %.2f of 255 (mirrored %.1f)\n", side,
                  augmentation != nullptr ? "random pieces" : "the middle", sum / 30, mirrored / 30);
      EXPECT_LT(sum / 30, 1);
      EXPECT_GT(mirrored / 30, 10) << "or the comparison says little";
    }
  }
}

TEST_F(ImageFilesTest, AreTheSameInBothMemoryFormatsAndWithAnyNumberOfThreads) {
  const std::vector<int32_t> samples = {7, 3, 29, 0, 14, 21};
  Batch batches[3];
  for (int i = 0; i < 3; ++i) {
    batches[i] = AllocateBatch(6, 48, i == 0 ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast);
    LoadBatch(LoadDataset(Spec(48, i == 2 ? 4 : 1)).train, samples, &kAugmentation, batches[i]);
  }
  EXPECT_TRUE(batches[0].images.equal(batches[1].images));
  EXPECT_TRUE(batches[1].images.equal(batches[2].images));
}

TEST_F(ImageFilesTest, AreTheSameIfTheDeviceConvertsTheirBytes) {
  const std::vector<int32_t> samples = {7, 3, 29, 0, 14, 21};
  const ImageSet set = LoadDataset(Spec(48, 2)).train;
  Batch expected = AllocateBatch(6, 48, at::MemoryFormat::ChannelsLast),
        actual = AllocateBatch(6, 48, at::MemoryFormat::ChannelsLast);
  ByteBatch bytes = AllocateByteBatch(6, set.shape, at::kCPU);
  for (const Augmentation* augmentation : {static_cast<const Augmentation*>(nullptr), &kAugmentation}) {
    LoadBatch(set, samples, augmentation, expected);
    LoadBytes(set, samples, augmentation, bytes, actual.labels);
    ConvertBytes(set, bytes, 6, actual.images, HostImages);
    EXPECT_TRUE(actual.images.equal(expected.images));
    EXPECT_TRUE(actual.labels.equal(expected.labels));
  }
}

TEST_F(ImageFilesTest, GiveASampleTheSamePieceWhicheverRankTrainsOnIt) {
  const Dataset data = LoadDataset(Spec());
  const auto batches = [&](int ranks) {
    std::vector<std::vector<at::Tensor>> images(4), labels(4);
    for (int r = 0; r < ranks; ++r) {
      TrainLoader loader(data.train, ShardedSampler(data.train.size, 12, r, ranks, 9),
                         {12 / ranks, 4, true, 9, at::MemoryFormat::ChannelsLast});
      for (int step = 0; step < 4; ++step) {
        const Batch& batch = loader.Next();
        images[step].push_back(batch.images.clone());
        labels[step].push_back(batch.labels.clone());
      }
    }
    std::vector<at::Tensor> all;
    for (int step = 0; step < 4; ++step)
      all.insert(all.end(), {at::cat(images[step]), at::cat(labels[step])});
    return all;
  };
  const auto one = batches(1);
  for (int ranks : {2, 4}) {
    const auto many = batches(ranks);
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(one[i].equal(many[i])) << ranks << " ranks, tensor " << i;
  }
  EXPECT_FALSE(one[0].equal(one[4])) << "another epoch";
}

TEST_F(ImageFilesTest, ThatAreDamagedEndTheRunInTheStepThatWantsThem) {
  const std::string path = dir_ + "/train/bee/1003.jpg";
  std::filesystem::remove(dir_ + "/train/bee/1003.JPEG");
  const std::string jpeg = EncodeJpeg(MakePicture(60, 60, 1));
  WriteBytes(path, jpeg.substr(0, jpeg.size() / 2));
  const Dataset data = LoadDataset(Spec());
  TrainLoader loader(data.train, ShardedSampler(data.train.size, 30, 0, 1, 9),
                     {30, 2, true, 9, at::MemoryFormat::ChannelsLast});
  try {
    loader.Next();
    FAIL() << "no error";
  } catch (const TrainerError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(path + ": "), HasSubstr("remature end"), HasSubstr("scalelab data verify")));
  }
}

TEST_F(ImageFilesTest, WithGoodBatchesBeforeADamagedImageTrainOnThem) {
  const Dataset data = LoadDataset(Spec());
  ShardedSampler sampler(data.train.size, 6, 0, 1, 9);
  sampler.StartEpoch(0);
  WriteBytes(data.train.files->path(sampler.Slice(3)[5]), "");
  TrainLoader loader(data.train, sampler, {6, 5, true, 9, at::MemoryFormat::ChannelsLast});
  for (int step = 0; step < 3; ++step) EXPECT_EQ(loader.Next().labels.numel(), 6);
  EXPECT_THROW(loader.Next(), TrainerError);
}

TEST_F(ImageFilesTest, AreTakenAtEvenDistancesWhereFewerAreWanted) {
  TrainingSpec spec = Spec();
  spec.train_samples = 6;
  const Dataset data = LoadDataset(spec);
  EXPECT_EQ(data.train.labels, (std::vector<uint16_t>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(data.test.size, 12);
  spec.train_samples = 1000;
  EXPECT_EQ(LoadDataset(spec).train.size, 30);
}

TEST_F(ImageFilesTest, AreEvaluated) {
  class Brightest : public Model {
    at::Tensor forward(const at::Tensor& images) override { return images.mean({2, 3}); }
  };
  Brightest model;
  SoloCommunicator communicator;
  const Evaluation result = Evaluate(model, LoadDataset(Spec()).test, Precision::kFp32, at::kCPU,
                                     at::MemoryFormat::ChannelsLast, communicator);
  EXPECT_EQ(result.samples, 12);
  EXPECT_GT(result.loss, 0);
}

TEST_F(ImageFilesTest, AreRefusedWhereTheFolderIsIncomplete) {
  TrainingSpec spec = Spec();
  spec.classes = 3;
  EXPECT_THAT(ErrorOf(spec), HasSubstr("remove it"));
  std::filesystem::remove_all(dir_ + "/val");
  EXPECT_THAT(ErrorOf(Spec()), HasSubstr(dir_ + "/val does not exist"));
  EXPECT_EQ(ReadShape(Spec()).classes, 3) << "initial parameters need no images";
  std::filesystem::remove_all(dir_ + "/train");
  EXPECT_THAT(ErrorOf(Spec()), HasSubstr(dir_ + "/train does not exist"));
}

TEST(DrawPiece, StaysWithinTheImageAndCoversWhatThePaperSays) {
  std::set<bool> flips;
  double smallest = 1, largest = 0, widest = 0, narrowest = 10;
  for (int64_t sample = 0; sample < 5000; ++sample) {
    const ImageSize size{400, 300};
    const ImagePiece piece = DrawPiece({7, 1}, sample, size);
    const ImageRegion& r = piece.region;
    ASSERT_GE(r.left, 0);
    ASSERT_GE(r.top, 0);
    ASSERT_LE(r.left + r.width, size.width);
    ASSERT_LE(r.top + r.height, size.height);
    const double area = r.width * r.height / (400.0 * 300), ratio = r.width / r.height;
    smallest = std::min(smallest, area), largest = std::max(largest, area);
    narrowest = std::min(narrowest, ratio), widest = std::max(widest, ratio);
    flips.insert(piece.flip);
  }
  EXPECT_NEAR(smallest, 0.08, 0.01);
  EXPECT_GT(largest, 0.97);
  EXPECT_NEAR(narrowest, 0.75, 0.02);
  EXPECT_NEAR(widest, 1.333, 0.03);
  EXPECT_EQ(flips.size(), 2u);
}

TEST(DrawPiece, TakesTheMiddleOfAVeryLongImage) {
  const ImagePiece piece = DrawPiece({7, 1}, 3, {1000, 3});
  EXPECT_DOUBLE_EQ(piece.region.width, 4);
  EXPECT_DOUBLE_EQ(piece.region.height, 3);
  EXPECT_DOUBLE_EQ(piece.region.left, 498);
}

TEST(MiddlePiece, IsTheSquareThatEvaluationOfImageNetTakes) {
  const ImagePiece piece = MiddlePiece({512, 256});
  EXPECT_DOUBLE_EQ(piece.region.width, 224);
  EXPECT_DOUBLE_EQ(piece.region.height, 224);
  EXPECT_DOUBLE_EQ(piece.region.left, 144);
  EXPECT_DOUBLE_EQ(piece.region.top, 16);
  EXPECT_FALSE(piece.flip);
}

}  // namespace
}  // namespace scalelab::trainer
