// Tests the trainer on a GPU. Without a GPU, the tests are skipped with the trainer's error message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/trainer/trainer_program.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

class OnGpu : public Trainer {
 protected:
  void SetUp() override {
    setenv("SCALELAB_SHARED_GPU", "1", 1);  // allows several ranks on one GPU
    static const std::string why_not = [this] {
      const Result run = Run({Gpu(1, {{"max_steps", "1"}})});
      const auto errors = run.Of(0, "error");
      const std::string message = errors.empty() ? "" : errors[0]["message"].get<std::string>();
      const bool missing = message.find("sees none") != std::string::npos ||
                           message.find("not part of this build") != std::string::npos;
      return missing ? message : "";
    }();
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }

  static json Gpu(int ranks, json more = json::object()) {
    json spec = Spec(ranks, {{"device", "cuda"}});
    spec.update(more);
    return spec;
  }
  // The result must not depend on how a batch is divided among ranks.
  static json Frozen(json more = json::object()) {
    json spec = {{"batch_norm", "eval"}, {"learning_rate", 0.001}};
    spec.update(more);
    return spec;
  }
  static double Deviation(const std::vector<double>& losses, const std::vector<double>& expected) {
    EXPECT_EQ(losses.size(), expected.size());
    double deviation = 0;
    for (size_t i = 0; i < std::min(losses.size(), expected.size()); ++i) {
      deviation = std::max(deviation, std::abs(losses[i] / expected[i] - 1));
    }
    return deviation;
  }
  static json Finish(const Result& run) { return run.Of(0, "finish").at(0)["metrics"]; }
};

TEST_F(OnGpu, TrainsAsOnTheCpu) {
  const std::vector<double> expected = Run({Spec(1, Frozen())}).Losses();
  const Result run = Run({Gpu(1, Frozen({{"warmup_steps", 5}, {"evaluate", true}}))});
  ASSERT_EQ(run.status, 0);
  EXPECT_LT(Deviation(run.Losses(), expected), 2e-3);
  EXPECT_GT(Finish(run)["run/device_memory_bytes"], 0);
  EXPECT_GT(Finish(run)["run/throughput"], 0);
  for (const json& step : run.Of(0, "step")) {
    const json& m = step["metrics"];
    double parts = 0;
    for (const char* part :
         {"step/data_s", "step/forward_s", "step/backward_s", "step/comm_exposed_s", "step/optimizer_s"}) {
      EXPECT_GE(m[part], 0) << part;
      parts += m[part].get<double>();
    }
    EXPECT_LE(parts, m["step/total_s"].get<double>() * 1.01 + 1e-5);
  }
}

TEST_F(OnGpu, LearnsInEveryPrecision) {
  for (const char* precision : {"tf32", "amp-bf16", "amp-fp16"}) {
    const Result run =
        Run({Gpu(1, {{"precision", precision}, {"learning_rate", 0.02}, {"max_steps", "40"}})});
    ASSERT_EQ(run.status, 0) << precision;
    const std::vector<double> losses = run.Losses();
    EXPECT_LT(losses.back(), losses.front()) << precision;
    const bool scaled = std::string(precision) == "amp-fp16";
    EXPECT_EQ(run.Of(0, "step").back()["metrics"].contains("train/loss_scale"), scaled);
    EXPECT_EQ(Finish(run).contains("run/steps_left_out"), scaled);
  }
}

TEST_F(OnGpu, ARecordedStepIsTheSameStep) {
  for (const char* precision : {"fp32", "amp-bf16", "amp-fp16"}) {
    const json more = Frozen({{"precision", precision}, {"warmup_steps", 10}});
    const Result plain = Run({Gpu(1, more)});
    json recorded = more;
    recorded["cuda_graph"] = true;
    const Result graph = Run({Gpu(1, recorded)});
    ASSERT_EQ(plain.status, 0) << precision;
    ASSERT_EQ(graph.status, 0) << precision;
    EXPECT_LT(Deviation(graph.Losses(), plain.Losses()), 2e-3) << precision;
    EXPECT_TRUE(graph.Of(0, "step")[0]["metrics"].contains("step/forward_s"));
    EXPECT_FALSE(graph.Of(0, "step").back()["metrics"].contains("step/forward_s"));
    EXPECT_FALSE(Finish(graph).contains("run/comm_share"));
    std::printf("%s: %.0f samples/s, recorded %.0f\n", precision,
                Finish(plain)["run/throughput"].get<double>(), Finish(graph)["run/throughput"].get<double>());
  }
}

TEST_F(OnGpu, SaysWhyAStepIsNotRecorded) {
  // Both ranks use one GPU.
  const Result run = Run({Gpu(2, {{"cuda_graph", true}, {"backend", "mpi"}, {"max_steps", "8"}})}, 2);
  ASSERT_EQ(run.status, 0);
  EXPECT_THAT(ReadAll(dir_ + "/err"), HasSubstr("backend \"mpi\" communicates from the host"));
}

TEST_F(OnGpu, EnginesOverTheHostTrainLikeOneRank) {
  const std::vector<double> expected = Run({Gpu(1, Frozen())}).Losses();
  for (const char* engine : {"native/ddp", "native/serial", "native/horovod"}) {
    const Result run = Run({Gpu(2, Frozen({{"engine", engine}, {"backend", "mpi"}}))}, 2);
    ASSERT_EQ(run.status, 0) << engine;
    EXPECT_LT(Deviation(run.Losses(), expected), 2e-3) << engine;
    EXPECT_EQ(run.hash(0), run.hash(1)) << engine;
  }
}

TEST_F(OnGpu, SynchronisesBatchNormalisationBetweenRanks) {
  const json more = {{"batch_norm", "sync"}, {"learning_rate", 0.005}};
  const std::vector<double> expected = Run({Gpu(1, more)}).Losses();
  json two = more;
  two["backend"] = "mpi";
  const Result run = Run({Gpu(2, two)}, 2);
  ASSERT_EQ(run.status, 0);
  EXPECT_LT(Deviation(run.Losses(), expected), 2e-3);
}

// The step of one rank contains operations of NCCL too if batch normalization is synchronous.
TEST_F(OnGpu, RecordsTheOperationsOfNccl) {
  const json more = {
      {"backend", "nccl"}, {"batch_norm", "sync"}, {"learning_rate", 0.005}, {"warmup_steps", 10}};
  const Result plain = Run({Gpu(1, more)});
  json recorded = more;
  recorded["cuda_graph"] = true;
  const Result graph = Run({Gpu(1, recorded)});
  ASSERT_EQ(plain.status, 0);
  ASSERT_EQ(graph.status, 0);
  EXPECT_LT(Deviation(graph.Losses(), plain.Losses()), 2e-3);
  EXPECT_FALSE(graph.Of(0, "step").back()["metrics"].contains("step/forward_s")) << "it was not recorded";
}

TEST_F(OnGpu, TrainsOverNccl) {
  const Result one = Run({Gpu(1, {{"backend", "nccl"}, {"max_steps", "8"}})});
  ASSERT_EQ(one.status, 0);
  const Result two = Run({Gpu(2, Frozen({{"backend", "nccl"}, {"cuda_graph", true}}))}, 2);
  if (two.status != 0) {  // the machine has only one GPU
    const auto errors = two.Of(0, "error");
    ASSERT_FALSE(errors.empty());
    EXPECT_THAT(errors[0]["message"].get<std::string>(), HasSubstr("would share one GPU"));
    return;
  }
  EXPECT_LT(Deviation(two.Losses(), Run({Gpu(1, Frozen())}).Losses()), 2e-3);
  EXPECT_EQ(two.hash(0), two.hash(1));
  EXPECT_FALSE(two.Of(0, "step").back()["metrics"].contains("step/forward_s")) << "it was not recorded";
}

}  // namespace
}  // namespace scalelab::trainer
