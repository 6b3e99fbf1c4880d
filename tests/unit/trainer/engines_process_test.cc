// Engines as real processes: checks that strategy_contract_test.cc, whose ranks are threads, cannot make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/unit/trainer/trainer_program.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

// Tolerance relative to the loss. The ranks add in another order, and each step amplifies the rounding errors
// of the steps before.
constexpr double kTolerance = 2e-3;

std::vector<std::string> Backends() {
#ifdef SCALELAB_GLOO
  return {"mpi", "gloo"};
#else
  return {"mpi"};
#endif
}

class Engines : public Trainer, public testing::WithParamInterface<std::string> {
 protected:
  static json Frozen(json more = json::object()) {
    json spec = {{"batch_norm", "eval"},
                 {"learning_rate", 0.001}};  // does not depend on how a batch is divided
    spec.update(more);
    return spec;
  }
  static double Deviation(const Result& run, const std::vector<double>& expected) {
    const std::vector<double> losses = run.Losses();
    EXPECT_EQ(losses.size(), expected.size());
    double deviation = 0;
    for (size_t i = 0; i < std::min(losses.size(), expected.size()); ++i) {
      deviation = std::max(deviation, std::abs(losses[i] / expected[i] - 1));
    }
    return deviation;
  }
};

TEST_P(Engines, TrainLikeOneRank) {
  const std::vector<double> expected = Run({Spec(1, Frozen())}).Losses();
  ASSERT_EQ(expected.size(), 20u);
  EXPECT_LT(expected.back(), expected.front()) << "it should learn, or the comparison says little";
  for (const int ranks : {2, 4}) {
    std::map<std::string, std::string> hashes;
    for (const char* engine :
         {"native/ddp", "native/serial", "native/horovod", "native/zero1", "native/zero2"}) {
      const Result run = Run({Spec(ranks, Frozen({{"engine", engine}, {"backend", GetParam()}}))}, ranks);
      ASSERT_EQ(run.status, 0) << engine;
      const double deviation = Deviation(run, expected);
      std::printf("%s over %s, %d ranks: largest relative deviation of the loss %.1e\n", engine,
                  GetParam().c_str(), ranks, deviation);
      EXPECT_LT(deviation, kTolerance) << engine;
      for (int r = 1; r < ranks; ++r) EXPECT_EQ(run.hash(r), run.hash(0)) << engine;
      hashes[engine] = run.hash(0);
    }
    // The sum of two numbers has no order: all engines end with the very same bits.
    if (ranks == 2) {
      EXPECT_EQ(hashes["native/serial"], hashes["native/ddp"]);
      EXPECT_EQ(hashes["native/horovod"], hashes["native/ddp"]);
      EXPECT_EQ(hashes["native/zero1"], hashes["native/ddp"]);
      EXPECT_EQ(hashes["native/zero2"], hashes["native/ddp"]);
    }
  }
}

TEST_P(Engines, AddUpThePartsOfABatch) {
  const json few = Frozen({{"max_steps", "8"}});
  const std::vector<double> expected = Run({Spec(1, few)}).Losses();
  json parts = few;
  parts.update({{"accumulation_steps", 3}, {"backend", GetParam()}});  // of 16 samples: 6, 5, 5
  for (const char* engine : {"native/ddp", "native/horovod", "native/zero1", "native/zero2"}) {
    parts["engine"] = engine;
    const Result run = Run({Spec(2, parts)}, 2);
    ASSERT_EQ(run.status, 0) << engine;
    EXPECT_LT(Deviation(run, expected), kTolerance) << engine;
    EXPECT_EQ(run.hash(1), run.hash(0)) << engine;
  }
}

// The last of three steps of an epoch has 25 samples.
TEST_P(Engines, TrainOnAnUnequalLastBatch) {
  const json uneven =
      Frozen({{"train_samples", "89"}, {"last_batch", "keep"}, {"epochs", 4}, {"max_steps", "12"}});
  const std::string expected =
      Run({Spec(1, uneven)}).Of(0, "epoch").at(3)["metrics"]["epoch/train_loss"].dump();
  json keep = uneven;
  keep.update({{"backend", GetParam()}});
  for (const char* engine : {"native/ddp", "native/zero1", "native/zero2"}) {
    for (const int parts : {1, 3}) {
      keep.update({{"engine", engine}, {"accumulation_steps", parts}});
      const Result run = Run({Spec(4, keep)}, 4);
      ASSERT_EQ(run.status, 0) << engine;
      const double loss = run.Of(0, "epoch").at(3)["metrics"]["epoch/train_loss"];
      EXPECT_NEAR(loss / std::stod(expected), 1, kTolerance) << engine << ", parts: " << parts;
      for (int r = 1; r < 4; ++r) EXPECT_EQ(run.hash(r), run.hash(0)) << engine;
    }
  }
}

// 270,000 parameters of 4 bytes. ZeRO's optimizer has a quarter of the momentum on each of 4 ranks, and in stage 2 also a
// quarter of the gradients, apart from the buckets in flight.
TEST_P(Engines, HaveAPartOfTheMemory) {
  const json few = Frozen({{"max_steps", "3"}, {"backend", GetParam()}});
  for (const char* engine : {"native/zero1", "native/zero2"}) {
    json spec = few;
    spec.update({{"engine", engine}});
    const Result run = Run({Spec(4, spec)}, 4);
    ASSERT_EQ(run.status, 0) << engine;
    double optimizer = 0;
    for (int r = 0; r < 4; ++r) {
      const json metrics = run.Of(r, "finish").at(0)["metrics"];
      const double parameters = metrics["memory/parameters_bytes"];
      EXPECT_NEAR(parameters, 4 * 272'000, 0.1 * 4 * 272'000);
      optimizer += metrics["memory/optimizer_bytes"].get<double>();
      EXPECT_NEAR(metrics["memory/optimizer_bytes"].get<double>(), parameters / 4, 0.1 * parameters / 4)
          << engine;
    }
    EXPECT_NEAR(optimizer, run.Of(0, "finish").at(0)["metrics"]["memory/parameters_bytes"].get<double>(),
                0.02 * optimizer);
  }
}

TEST_P(Engines, SumTheSameByEveryAlgorithm) {
  std::map<std::string, std::string> hashes;
  for (const char* all_reduce : {"library", "ring", "hierarchical"}) {
    const Result run = Run({Spec(2, Frozen({{"engine", "native/horovod"},
                                            {"all_reduce", all_reduce},
                                            {"backend", GetParam()},
                                            {"max_steps", "4"}}))},
                           2);
    ASSERT_EQ(run.status, 0) << all_reduce;
    EXPECT_EQ(run.hash(1), run.hash(0)) << all_reduce;
    hashes[all_reduce] = run.hash(0);
    json metrics = run.Of(0, "finish").at(0)["metrics"];
    for (const std::string algorithm : {"ring", "hierarchical"}) {
      EXPECT_EQ(metrics["horovod/" + algorithm + "_all_reduces"],
                algorithm == all_reduce ? metrics["horovod/all_reduces"] : json(0));
    }
  }
  // Of two ranks the order does not matter.
  EXPECT_EQ(hashes["ring"], hashes["library"]);
  EXPECT_EQ(hashes["hierarchical"], hashes["library"]);
}

INSTANTIATE_TEST_SUITE_P(Over, Engines, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param; });

TEST_F(Trainer, WithoutSynchronisationHasNoHashToCompare) {
  const Result run = Run({Spec(2, {{"engine", "native/none"}, {"max_steps", "4"}})}, 2);
  ASSERT_EQ(run.status, 0);
  EXPECT_EQ(run.hash(0), "");
  EXPECT_EQ(run.hash(1), "");
  for (const json& step : run.Of(0, "step")) EXPECT_EQ(step["metrics"]["comm/bytes"], 0);
  EXPECT_NE(Run({Spec(1, {{"engine", "native/none"}, {"max_steps", "1"}})}).hash(0), "");
}

TEST_F(Trainer, TellsWhatHorovodsMachineryDid) {
  const Result run =
      Run({Spec(2, {{"engine", "native/horovod"}, {"max_steps", "6"}, {"timeline", true}})}, 2);
  ASSERT_EQ(run.status, 0);
  for (int r = 0; r < 2; ++r) {
    const json metrics = run.Of(r, "finish").at(0)["metrics"];
    const double tensors = metrics["horovod/cache_misses"];
    EXPECT_GT(tensors, 50) << "each tensor of the network is negotiated once";
    EXPECT_EQ(metrics["horovod/cache_hits"], 5 * tensors);
    EXPECT_GT(metrics["horovod/fused_tensors"], 0);
    EXPECT_LT(metrics["horovod/all_reduces"], 6 * tensors);
    EXPECT_GE(metrics["horovod/cycles"], 6);
    EXPECT_EQ(metrics["horovod/stall_warnings"], 0);
    EXPECT_EQ(metrics["horovod/bytes"], 6 * run.Of(r, "step")[0]["metrics"]["comm/bytes"].get<double>());
  }
  const json timeline = json::parse(ReadAll(dir_ + "/horovod-timeline.json"));
  const auto reduced =
      std::ranges::count_if(timeline, [](const json& e) { return e["name"] == "ALLREDUCE"; });
  EXPECT_EQ(reduced, 6 * run.Of(0, "finish").at(0)["metrics"]["horovod/cache_misses"].get<int>());
}

TEST_F(Trainer, RefusesHorovodWithStatisticsOverAllRanks) {
  const Result run = Run({Spec(2, {{"engine", "native/horovod"}, {"batch_norm", "sync"}})}, 2);
  EXPECT_NE(run.status, 0);
  // The first rank that fails ends the other, perhaps before that one has said why.
  std::vector<json> errors = run.Of(0, "error");
  if (errors.empty()) errors = run.Of(1, "error");
  ASSERT_FALSE(errors.empty());
  EXPECT_THAT(errors[0]["message"].get<std::string>(), HasSubstr("batch_norm"));
}

}  // namespace
}  // namespace scalelab::trainer
