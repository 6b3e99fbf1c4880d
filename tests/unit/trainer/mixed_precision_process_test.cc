// Tests engines with automatic mixed precision, as real processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "tests/unit/trainer/trainer_program.h"

namespace scalelab::trainer {
namespace {

// Relative to the loss. bfloat16 has 8 bits of precision, so rounding changes a number by up to 2^-8 (0.4%). The ranks
// round the same numbers as one rank with the same parts of a batch, but may add them in another order, and each step
// amplifies the differences.
constexpr double kTolerance = 0.01;

bool IsLong() { return std::getenv("SCALELAB_LONG_TESTS") != nullptr; }

struct Engine {
  const char* name;
  json keys;
  // The number of parts into which one rank must divide a batch to train in the same way: batch normalisation uses
  // the statistics of a part. If it is 0, the engine trains differently by design.
  int parts = 0;
  const char* backend = "mpi";  // in the short form
  int ranks = 2, trainers = 2;
};
void PrintTo(const Engine& engine, std::ostream* out) { *out << engine.name; }

std::vector<std::string> BackendsOf(const Engine& engine) {
  if (engine.ranks == 1) return {"auto"};
#ifdef SCALELAB_GLOO
  if (IsLong()) return {"mpi", "gloo"};
  return {engine.backend};
#else
  return {"mpi"};
#endif
}

class MixedPrecision : public Trainer, public testing::WithParamInterface<Engine> {};

TEST_P(MixedPrecision, TrainsLikeOneRankUnlessItDiffersByDesign) {
  const Engine& engine = GetParam();
  // The parameters of the network, and therefore the messages of the ranks, do not depend on the size of the images.
  const json common = {{"precision", "amp-bf16"},
                       {"max_steps", "6"},
                       {"image_size", IsLong() ? 16 : 8},
                       {"global_batch", IsLong() ? 32 : 16}};
  std::vector<double> expected;
  if (engine.parts > 0) {
    json one = common;
    one["accumulation_steps"] = engine.parts;
    expected = Run({Spec(1, one)}).Losses();
    ASSERT_EQ(expected.size(), 6u);
    EXPECT_LT(expected.back(), (1 - 10 * kTolerance) * expected.front())
        << "it should learn, or the comparison says little";
  }
  for (const std::string& backend : BackendsOf(engine)) {
    json spec = common;
    spec["backend"] = backend;
    spec.update(engine.keys);
    const Result run = Run({Spec(engine.ranks, spec)}, engine.ranks);
    ASSERT_EQ(run.status, 0) << backend;
    const std::vector<double> losses = run.Losses(engine.trainers);
    ASSERT_EQ(losses.size(), 6u) << backend;
    for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss)) << loss;
    EXPECT_LT(losses.back(), losses.front()) << backend;
    double deviation = 0;
    for (size_t i = 0; i < expected.size(); ++i)
      deviation = std::max(deviation, std::abs(losses[i] / expected[i] - 1));
    std::printf("%s over %s: largest relative deviation of the loss %.1e\n", engine.name, backend.c_str(),
                deviation);
    EXPECT_LT(deviation, kTolerance) << backend;
    EXPECT_NE(run.hash(0), "");
    for (int r = 1; r < engine.ranks; ++r) EXPECT_EQ(run.hash(r), run.hash(0)) << backend;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engines, MixedPrecision,
    testing::Values(
        Engine{"zero1", {{"engine", "native/zero1"}}, /*parts=*/2},
        Engine{"zero2", {{"engine", "native/zero2"}, {"accumulation_steps", 2}}, /*parts=*/4, "gloo"},
        Engine{"zero3", {{"engine", "native/zero3"}, {"bucket_cap_mib", 1}}, /*parts=*/2},
        Engine{"pipeline", {{"engine", "native/pipeline"}, {"accumulation_steps", 2}}, /*parts=*/2, "gloo"},
        Engine{"data_parallel",
               {{"engine", "native/data-parallel"}, {"replicas", 2}, {"cpus_per_rank", 2}},
               /*parts=*/2,
               "",
               /*ranks=*/1,
               /*trainers=*/1},
        Engine{"parameter_server",
               {{"engine", "native/parameter-server"}},
               /*parts=*/1,
               "mpi",
               /*ranks=*/2,
               /*trainers=*/1},
        Engine{"local_sgd", {{"engine", "native/local-sgd"}, {"local_steps", 2}}, /*parts=*/0, "gloo"},
        Engine{"powersgd", {{"gradient_compression", "powersgd"}, {"powersgd_rank", 2}}},
        Engine{"top_k", {{"gradient_compression", "top-k"}, {"top_k_ratio", 0.1}}, /*parts=*/0, "gloo"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace scalelab::trainer
