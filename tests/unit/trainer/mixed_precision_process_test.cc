// Tests engines with automatic mixed precision, as real processes.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "tests/unit/trainer/trainer_program.h"

namespace scalelab::trainer {
namespace {

struct Engine {
  const char* name;
  json keys;
  int trainers = 2;
};
void PrintTo(const Engine& engine, std::ostream* out) { *out << engine.name; }

class MixedPrecision : public Trainer, public testing::WithParamInterface<Engine> {};

TEST_P(MixedPrecision, TrainsAndKeepsRanksEqual) {
  json spec = {{"precision", "amp-bf16"}, {"max_steps", "6"}, {"image_size", 16}};
  spec.update(GetParam().keys);
  const Result run = Run({Spec(2, spec)}, 2);
  ASSERT_EQ(run.status, 0);
  const std::vector<double> losses = run.Losses(GetParam().trainers);
  ASSERT_EQ(losses.size(), 6u);
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss)) << loss;
  EXPECT_NE(run.hash(0), "");
  EXPECT_EQ(run.hash(1), run.hash(0));
}

INSTANTIATE_TEST_SUITE_P(
    Engines, MixedPrecision,
    testing::Values(Engine{"zero1", {{"engine", "native/zero1"}}},
                    Engine{"zero2", {{"engine", "native/zero2"}, {"accumulation_steps", 2}}},
                    Engine{"zero3", {{"engine", "native/zero3"}, {"bucket_cap_mib", 1}}},
                    Engine{"pipeline", {{"engine", "native/pipeline"}, {"accumulation_steps", 2}}},
                    Engine{"parameter_server", {{"engine", "native/parameter-server"}}, /*trainers=*/1},
                    Engine{"local_sgd", {{"engine", "native/local-sgd"}, {"local_steps", 2}}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace scalelab::trainer
