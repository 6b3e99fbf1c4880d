#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/trainer/errors.h"
#include "worker/trainer/optim/schedule.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string ErrorOf(const std::string& json) {
  try {
    ParseTrainingSpec(json, "spec.json");
  } catch (const TrainerError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TrainingSpec, TakesProtobufJsonWith64BitNumbersAsStrings) {
  const TrainingSpec spec = ParseTrainingSpec(
      R"({"engine":"native/ddp","model":"resnet56","max_steps":"200","seed":"-7","ranks":4,"global_batch":256,
          "learning_rate":0.4,"augment":false,"batch_norm":"sync","train_samples":"1000","comm_timeout_s":2.5,"command":[]})",
      "spec.json");
  EXPECT_EQ(spec.model, "resnet56");
  EXPECT_EQ(spec.max_steps, 200);
  EXPECT_EQ(spec.seed, -7);
  EXPECT_EQ(spec.batch_per_rank, 64);
  EXPECT_EQ(spec.learning_rate, 0.4);
  EXPECT_FALSE(spec.augment);
  EXPECT_EQ(spec.train_samples, 1000);
  EXPECT_EQ(spec.comm_timeout_s, 2.5);
}

TEST(TrainingSpec, TakesTheOptionsOfEngines) {
  const TrainingSpec spec = ParseTrainingSpec(
      R"({"accumulation_steps":4,"first_bucket_cap_mib":2,"bucket_cap_mib":10,"find_unused_parameters":true,
          "static_graph":true,"fusion_threshold_mib":0,"cycle_time_ms":2.5,"cache_capacity":0,
          "gradient_compression":"fp16","autotune":true,"stall_warning_s":0,"timeline":true,
          "powersgd_rank":2,"compression_start_step":"10","top_k_ratio":0.05,"local_steps":4,
          "local_start_step":"20","slow_momentum":0.5,
          "all_reduce":"ring","cuda_graph":true,"image_size":64,"classes":100,"save_parameters":true})",
      "spec.json");
  EXPECT_EQ(spec.accumulation_steps, 4);
  EXPECT_EQ(spec.first_bucket_cap_mib, 2);
  EXPECT_EQ(spec.bucket_cap_mib, 10);
  EXPECT_TRUE(spec.find_unused_parameters);
  EXPECT_TRUE(spec.static_graph);
  EXPECT_EQ(spec.fusion_threshold_mib, 0);
  EXPECT_EQ(spec.cycle_time_ms, 2.5);
  EXPECT_EQ(spec.cache_capacity, 0);
  EXPECT_EQ(spec.gradient_compression, "fp16");
  EXPECT_EQ(spec.powersgd_rank, 2);
  EXPECT_EQ(spec.compression_start_step, 10);
  EXPECT_EQ(spec.top_k_ratio, 0.05);
  EXPECT_EQ(spec.local_steps, 4);
  EXPECT_EQ(spec.local_start_step, 20);
  EXPECT_EQ(spec.slow_momentum, 0.5);
  EXPECT_TRUE(spec.autotune);
  EXPECT_EQ(spec.stall_warning_s, 0);
  EXPECT_TRUE(spec.timeline);
  EXPECT_EQ(spec.all_reduce, "ring");
  EXPECT_TRUE(spec.cuda_graph);
  EXPECT_EQ(ParseTrainingSpec(R"({"last_batch":"keep"})", "spec.json").last_batch, "keep");
  EXPECT_EQ(spec.image_size, 64);
  EXPECT_EQ(spec.classes, 100);
  EXPECT_TRUE(spec.save_parameters);
}

TEST(TrainingSpec, RefusesToRecordStepsOfTwoSizes) {
  EXPECT_THROW(ParseTrainingSpec(R"({"cuda_graph":true,"last_batch":"keep"})", "spec.json"), TrainerError);
}

TEST(TrainingSpec, KeepsDefaultsOfMissingFields) {
  const TrainingSpec spec = ParseTrainingSpec("{}", "spec.json");
  EXPECT_EQ(spec.engine, "native/ddp");
  EXPECT_EQ(spec.ranks, 1);
  EXPECT_EQ(spec.global_batch, 128);
}

TEST(TrainingSpec, NamesFileFieldAndValueOfWhatIsWrong) {
  EXPECT_THAT(ErrorOf(R"({"max_steps":"many"})"),
              AllOf(HasSubstr("spec.json"), HasSubstr("max_steps"), HasSubstr("many")));
  EXPECT_THAT(ErrorOf(R"({"epochs":1.5})"), AllOf(HasSubstr("epochs"), HasSubstr("1.5")));
  EXPECT_THAT(ErrorOf(R"({"augment":"yes"})"), HasSubstr("augment"));
  EXPECT_THAT(ErrorOf(R"({"ranks":0})"), HasSubstr("ranks"));
  EXPECT_THAT(ErrorOf(R"({"precision":"fp8"})"), AllOf(HasSubstr("amp-bf16"), HasSubstr("fp8")));
  EXPECT_THAT(ErrorOf(R"({"ranks":3,"global_batch":128})"),
              AllOf(HasSubstr("global_batch"), HasSubstr("3 ranks")));
  EXPECT_THAT(ErrorOf(R"({"ranks":2,"global_batch":128,"batch_per_rank":128})"), HasSubstr("global_batch"));
  EXPECT_THAT(ErrorOf(R"({"batch_per_rank":4,"accumulation_steps":5})"),
              AllOf(HasSubstr("accumulation_steps"), HasSubstr("batch_per_rank (4)")));
  EXPECT_THAT(ErrorOf(R"({"gradient_compression":"fp8"})"), AllOf(HasSubstr("fp16"), HasSubstr("fp8")));
  EXPECT_THAT(ErrorOf(R"({"top_k_ratio":2})"), AllOf(HasSubstr("top_k_ratio"), HasSubstr("1e-06 and 1")));
  EXPECT_THAT(ErrorOf(R"({"cycle_time_ms":-1})"), HasSubstr("cycle_time_ms"));
  EXPECT_THAT(ErrorOf("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf(R"({"comm_timeout_s":0})"), AllOf(HasSubstr("comm_timeout_s"), HasSubstr("0.1")));
  EXPECT_THAT(ErrorOf(R"({"lr_schedule":"step","epochs":90,"lr_milestones":"30;60"})"),
              AllOf(HasSubstr("spec.json: lr_milestones must be a text with epochs"), HasSubstr("'30;60'")));
  EXPECT_THAT(ErrorOf(R"({"lr_schedule":"step","epochs":60,"lr_milestones":"30,60"})"),
              HasSubstr("must be less than epochs, 60"));
  EXPECT_THAT(ErrorOf(R"({"lr_schedule":"cosine","lr_milestones":"0.5"})"), HasSubstr("not cosine"));
}

TEST(LearningRate, WarmsUpByStepsAndThenStaysConstant) {
  TrainingSpec spec;
  spec.learning_rate = 0.8, spec.warmup_start_rate = 0.2, spec.warmup_epochs = 1.5, spec.epochs = 4;
  EXPECT_DOUBLE_EQ(LearningRate(spec, 0, 10), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 5, 10), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 15, 10), 0.8);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 39, 10), 0.8);
}

TEST(LearningRate, FallsTenfoldAtOneHalfAndThreeQuarters) {
  TrainingSpec spec;
  spec.learning_rate = 1, spec.lr_schedule = "step", spec.epochs = 4;
  EXPECT_DOUBLE_EQ(LearningRate(spec, 19, 10), 1);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 20, 10), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 30, 10), 0.01);
}

// The schedule of Goyal et al. 2017 for ImageNet: five epochs of warm-up, and epochs 30, 60 and 80 of 90.
TEST(LearningRate, FallsTenfoldAtEachMilestone) {
  const TrainingSpec spec = ParseTrainingSpec(
      R"({"learning_rate":3.2,"warmup_start_rate":0.1,"warmup_epochs":5,"epochs":90,"lr_schedule":"step",
          "lr_milestones":"30,60,80"})",
      "spec.json");
  EXPECT_DOUBLE_EQ(LearningRate(spec, 0, 10), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 50, 10), 3.2);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 299, 10), 3.2);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 300, 10), 0.32);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 599, 10), 0.32);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 600, 10), 0.032);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 800, 10), 0.0032);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 899, 10), 0.0032);
}

TEST(LearningRate, FallsWithinAnEpochToo) {
  TrainingSpec spec;
  spec.learning_rate = 1, spec.lr_schedule = "step", spec.epochs = 4, spec.lr_milestones = "2.5";
  EXPECT_DOUBLE_EQ(LearningRate(spec, 24, 10), 1);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 25, 10), 0.1);
}

TEST(LearningRate, FollowsHalfACosineFromTheEndOfWarmUp) {
  TrainingSpec spec;
  spec.learning_rate = 1, spec.lr_schedule = "cosine", spec.epochs = 5, spec.warmup_epochs = 1;
  EXPECT_DOUBLE_EQ(LearningRate(spec, 10, 10), 1);
  EXPECT_NEAR(LearningRate(spec, 30, 10), 0.5, 1e-12);
  EXPECT_NEAR(LearningRate(spec, 50, 10), 0, 1e-12);
}

}  // namespace
}  // namespace scalelab::trainer
