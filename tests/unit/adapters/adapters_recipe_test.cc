// Compares the recipe in Python (worker/adapters/scalelab) with that of the native trainer. Both must compute
// the same bytes.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "nlohmann/json.hpp"
#include "tests/fakes/image_folder.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/train_loader.h"
#include "worker/trainer/optim/schedule.h"

namespace scalelab::trainer {
namespace {

using nlohmann::json;

template <typename T>
std::vector<T> Numbers(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<T> numbers(bytes.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(T));
  return numbers;
}

template <typename T>
void Append(const at::Tensor& tensor, std::vector<T>& out) {
  const at::Tensor flat = tensor.contiguous();
  out.insert(out.end(), flat.data_ptr<T>(), flat.data_ptr<T>() + flat.numel());
}

class Recipe : public testing::Test {
 protected:
  Recipe() {
    std::string pattern = testing::TempDir() + "/recipe-XXXXXX";
    dir_ = mkdtemp(pattern.data());
    setenv("SCALELAB_TRAINER", SCALELAB_TRAINER_PROGRAM, 1);
  }
  ~Recipe() override { std::filesystem::remove_all(dir_); }

  // Compares every number that the two implementations compute from the specification, on each rank.
  void Compare(const json& fields) {
    const TrainingSpec spec = ParseTrainingSpec(fields.dump(), "spec.json");
    std::ofstream(dir_ + "/spec.json") << fields;
    for (int rank = 0; rank < spec.ranks; ++rank) {
      const std::string command = "/usr/bin/python3 " SCALELAB_SOURCE_DIR
                                  "/tests/unit/adapters/dump_recipe.py " +
                                  dir_ + "/spec.json " + dir_ + " " + std::to_string(rank);
      ASSERT_EQ(system(command.c_str()), 0);
      CompareRank(spec, rank);
    }
  }

 private:
  void CompareLabels(const std::string& name, const ImageSet& set) {
    EXPECT_TRUE(std::ranges::equal(Numbers<int64_t>(dir_ + "/" + name + "_labels.bin"), set.labels)) << name;
  }

  void CompareRank(const TrainingSpec& spec, int rank) {
    const Dataset data = LoadDataset(spec);
    CompareLabels("train", data.train);
    CompareLabels("test", data.test);
    std::vector<float> test;
    if (data.test.size > 0) {
      std::vector<int32_t> every(static_cast<size_t>(data.test.size));
      std::iota(every.begin(), every.end(), 0);
      Batch batch = AllocateBatch(data.test.size, data.test.shape.side, at::MemoryFormat::Contiguous);
      LoadBatch(data.test, every, nullptr, batch);
      Append(batch.images, test);
    }
    const auto seed = static_cast<uint64_t>(spec.seed);
    const ShardedSampler sampler(data.train.size, spec.global_batch, rank, static_cast<int>(spec.ranks),
                                 seed);
    const int64_t steps = spec.epochs * sampler.steps_per_epoch();
    TrainLoader loader(data.train, sampler,
                       {spec.batch_per_rank, steps, spec.augment, seed, at::MemoryFormat::Contiguous});
    std::vector<float> first, last;
    std::vector<int64_t> labels;
    std::vector<double> rates;
    for (int64_t step = 0; step < steps; ++step) {
      const Batch& batch = loader.Next();
      Append(batch.images, first);
      Append(batch.images.permute({0, 2, 3, 1}), last);
      Append(batch.labels, labels);
      rates.push_back(LearningRate(spec, step, sampler.steps_per_epoch()));
    }
    ASSERT_GT(steps, 1);
    EXPECT_EQ(Numbers<int64_t>(dir_ + "/labels.bin"), labels);
    for (const char* by : {"", "bytes_"}) {
      EXPECT_TRUE(Numbers<float>(dir_ + "/" + by + "NCHW.bin") == first) << by;
      EXPECT_TRUE(Numbers<float>(dir_ + "/" + by + "NHWC.bin") == last) << by;
      EXPECT_TRUE(Numbers<float>(dir_ + "/" + by + "test.bin") == test) << by;
    }
    EXPECT_EQ(Numbers<double>(dir_ + "/rates.bin"), rates);
  }

 protected:
  std::string dir_;
};

TEST_F(Recipe, SyntheticImagesOfCifarsSize) {
  Compare({{"dataset", "synthetic"},
           {"train_samples", 1100},
           {"global_batch", 90},
           {"ranks", 3},
           {"epochs", 2},
           {"seed", "7"},
           {"evaluate", true},
           {"lr_schedule", "cosine"},
           {"warmup_epochs", 0.5}});
}

TEST_F(Recipe, SyntheticImagesOfAnotherSizeWithoutAugmentation) {
  // The sizes of rows and images are not multiples of the size of the generator's words.
  Compare({{"dataset", "synthetic"},
           {"image_size", 37},
           {"classes", 13},
           {"train_samples", 50},
           {"global_batch", 16},
           {"augment", false},
           {"seed", "-3"},
           {"lr_schedule", "step"}});
}

TEST_F(Recipe, RatesThatFallAtMilestones) {
  Compare({{"dataset", "synthetic"},
           {"train_samples", 70},
           {"global_batch", 10},
           {"epochs", 6},
           {"learning_rate", 0.3},
           {"warmup_start_rate", 0.03},
           {"warmup_epochs", 1},
           {"lr_schedule", "step"},
           {"lr_milestones", "1.5,3,4,5.25"}});
}

TEST_F(Recipe, Cifar10) {
  Compare({{"dataset", "cifar10"},
           {"data_dir", SCALELAB_SOURCE_DIR "/deploy/data"},
           {"global_batch", 100},
           {"ranks", 2},
           {"evaluate", true}});
}

TEST_F(Recipe, ImagesOfFilesComeFromTheTrainer) {
  MakeImageFolder(dir_ + "/images", 8, 5);
  for (const bool augment : {true, false}) {
    Compare({{"dataset", "imagefolder"},
             {"data_dir", dir_ + "/images"},
             {"image_size", 40},
             {"global_batch", 8},
             {"ranks", 2},
             {"epochs", 2},
             {"seed", "5"},
             {"augment", augment},
             {"evaluate", true}});
  }
}

TEST_F(Recipe, AFileThatCannotBeDecodedIsNamed) {
  MakeImageFolder(dir_ + "/images", 8, 5);
  const std::string bad = dir_ + "/images/val/bee/0.jpg";
  std::ofstream(bad, std::ios::trunc) << "no image";
  std::ofstream(dir_ + "/spec.json") << json{
      {"dataset", "imagefolder"}, {"data_dir", dir_ + "/images"}, {"global_batch", 8}, {"evaluate", true}};
  EXPECT_NE(system(("/usr/bin/python3 " SCALELAB_SOURCE_DIR "/tests/unit/adapters/dump_recipe.py " + dir_ +
                    "/spec.json " + dir_ + " 0 2>" + dir_ + "/errors")
                       .c_str()),
            0);
  std::ifstream in(dir_ + "/errors");
  const std::string errors{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(errors.find("RunError: " + bad), std::string::npos) << errors;
}

TEST_F(Recipe, RequestsThatAreNoneAreRefused) {
  MakeImageFolder(dir_ + "/images", 8, 5);
  std::ofstream(dir_ + "/spec.json") << json{{"dataset", "imagefolder"}, {"data_dir", dir_ + "/images"}};
  for (const char* request : {"train 0 NCHW 24", "train 0 NCHW", "test 0 NCHW 0", "train x NCHW 1",
                              "train 0 CHW 1", "train 0 NHWC 1 x", "train 0 BYTES 24"}) {
    EXPECT_NE(system(("echo '" + std::string(request) + "' | $SCALELAB_TRAINER --serve-images " + dir_ +
                      "/spec.json >" + dir_ + "/out 2>" + dir_ + "/errors")
                         .c_str()),
              0)
        << request;
    std::ifstream in(dir_ + "/errors");
    const std::string errors{std::istreambuf_iterator<char>(in), {}};
    EXPECT_NE(errors.find("request \"" + std::string(request)), std::string::npos) << errors;
  }
}

}  // namespace
}  // namespace scalelab::trainer
