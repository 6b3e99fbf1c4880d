// Predictions of emulated studies whose larger sizes are known; `scalelab-bench predict` prints the same figures.
#include <map>

#include "gtest/gtest.h"
#include "tests/bench/predict_bench.h"

namespace scalelab::bench {
namespace {

TEST(EmulatedStudies, HaveSmallErrorsAndIntervalsOfAboutNinetyPercent) {
  std::map<std::string, double> values;
  for (const Figure& figure : RunPredictBench({})) values[figure.name] = figure.value;
  for (const std::string kind : {"predict/with times of ranks", "predict/from throughputs"}) {
    ASSERT_TRUE(values.contains(kind + "/coverage"));
    EXPECT_LE(values[kind + "/median error"], 10) << kind;
    EXPECT_GE(values[kind + "/coverage"], 85) << kind;
    EXPECT_LE(values[kind + "/coverage"], 95) << kind;
  }
  EXPECT_LT(values["predict/with times of ranks/median error"],
            values["predict/from throughputs/median error"])
      << "the model of the step helps";
}

}  // namespace
}  // namespace scalelab::bench
