#include "server/prediction/models.h"

#include <algorithm>
#include <cmath>

#include "analysis/statistics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/prediction/conformal.h"
#include "server/prediction/predict.h"

namespace scalelab::server {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

using Sizes = std::vector<MeasuredSize>;

TEST(Models, PerfectScalingStaysPerfect) {
  const auto models = PredictByModels({{1, 100}, {2, 200}, {4, 400}}, 16);
  ASSERT_THAT(models, SizeIs(5));
  for (const auto& [name, throughput] : models) EXPECT_NEAR(throughput, 1600, 1e-6) << name;
}

TEST(Models, TheTwoThatUseTheLastTwoSizesByHand) {
  const auto models = PredictByModels({{1, 100}, {2, 200}, {4, 300}}, 8);
  // 300 / 200 = 1.5 for each doubling.
  EXPECT_NEAR(models.at("log-log"), 450, 1e-9);
  // Cost of a sample: 0.01 at 2 and 0.013333 at 4 ranks, so 0.016667 at 8: 8 / 0.016667.
  EXPECT_NEAR(models.at("1/efficiency"), 480, 1e-9);
}

// The examples of docs/users/predictions.md.
TEST(Models, TheLawsByHand) {
  // s = (0.8 x 0.2 + 1.875 x 0.375) / (0.8^2 + 1.875^2) = 0.2077, and 800 / (1 + 7 s) = 326.0.
  EXPECT_NEAR(PredictByModels({{1, 100}, {2, 160}, {4, 250}}, 8).at("amdahl"), 326.0, 0.05);
  // a = 0, b = 0.125
  EXPECT_NEAR(PredictByModels({{1, 100}, {2, 160}, {4, 160}}, 8).at("usl"), 100, 1e-9);
}

TEST(Models, ExtraPAndTheIntervalByHand) {
  // A sample costs 0.010, 0.011 and 0.012 rank-seconds.
  const PredictedThroughput predicted =
      PredictThroughput({{1, 1 / 0.010}, {2, 2 / 0.011}, {4, 4 / 0.012}}, 8, 0.03);
  EXPECT_NEAR(predicted.models.at("extra-p"), 615.4, 0.05);
  EXPECT_NEAR(predicted.models.at("1/efficiency"), 615.4, 0.05);
  EXPECT_NEAR(predicted.models.at("log-log"), 611.1, 0.05);
  EXPECT_NEAR(predicted.mean, 614.0, 0.05);
  EXPECT_NEAR(predicted.low, 580.6, 0.05);
  EXPECT_NEAR(predicted.high, 646.2, 0.05);
}

TEST(Models, ALawThatIsTrueIsContinued) {
  const auto amdahl = [](double p) { return 50 / (0.05 + 0.95 / p); };
  const auto usl = [](double p) { return 50 * p / (1 + 0.03 * (p - 1) + 0.002 * p * (p - 1)); };
  Sizes by_amdahl, by_usl;
  for (const int p : {1, 2, 4, 8}) {
    by_amdahl.push_back({p, amdahl(p)});
    by_usl.push_back({p, usl(p)});
  }
  const auto of_amdahl = PredictByModels(by_amdahl, 32);
  EXPECT_NEAR(of_amdahl.at("amdahl"), amdahl(32), 1e-6);
  EXPECT_NEAR(of_amdahl.at("usl"), amdahl(32), 1e-5);
  EXPECT_NEAR(PredictByModels(by_usl, 32).at("usl"), usl(32), 1e-5);
}

TEST(Models, ABaseOfSeveralRanksIsUsed) {
  const auto amdahl = [](double p) { return 50 / (0.05 + 0.95 / p); };
  const Sizes sizes = {{4, amdahl(4)}, {8, amdahl(8)}, {16, amdahl(16)}};
  EXPECT_NEAR(PredictByModels(sizes, 64).at("amdahl"), amdahl(64), 1e-6);
}

TEST(Models, ExtraPFindsTheTermOfTheCost) {
  // Each sample costs 1 + 0.1 log2 p rank-seconds, as a tree of messages would.
  Sizes sizes;
  for (const int p : {1, 2, 4, 8}) sizes.push_back({p, p / (1 + 0.1 * std::log2(p))});
  EXPECT_NEAR(PredictByModels(sizes, 32).at("extra-p"), 32 / 1.5, 1e-9);
}

TEST(Models, AModelThatPredictsNothingAboveZeroIsLeftOut) {
  // The scaling is faster than linear: if it continued, the cost of a sample would be negative at 64 ranks.
  const auto models = PredictByModels({{1, 1}, {2, 2.2}, {4, 6}}, 64);
  EXPECT_FALSE(models.contains("1/efficiency"));
  EXPECT_THAT(models, Each(Pair(::testing::_, ::testing::Gt(0))));
}

TEST(Envelope, IsThatOfTheModelsAndFourPercentForEachDoubling) {
  const PredictedThroughput exact = PredictThroughput({{1, 100}, {2, 200}, {4, 400}}, 16, 0);
  EXPECT_NEAR(exact.mean, 1600, 1e-6);
  EXPECT_NEAR(exact.low, 1600 * 0.92, 1e-6);
  EXPECT_NEAR(exact.high, 1600 * 1.08, 1e-6);
  // Noise of 6% and the 8% of two doublings: the root of the sum of the squares is 10%.
  EXPECT_NEAR(PredictThroughput({{1, 100}, {2, 200}, {4, 400}}, 16, 0.06).high, 1600 * 1.10, 1e-6);
}

TEST(Envelope, ContainsTheReplayAndIsThenNarrower) {
  const PredictedThroughput predicted = PredictThroughput({{1, 100}, {2, 200}, {4, 400}}, 16, 0, 1500);
  EXPECT_EQ(predicted.models.at("replay"), 1500);
  EXPECT_NEAR(predicted.low, 1500 * 0.98, 1e-6) << "1% for each doubling";
  EXPECT_NEAR(predicted.high, 1600 * 1.02, 1e-6);
}

TEST(Envelope, TheMeanIsTheGeometricMeanOfTheModelsExceptTheLaws) {
  const PredictedThroughput predicted = PredictThroughput({{1, 100}, {2, 190}, {4, 330}}, 8, 0);
  const auto& models = predicted.models;
  EXPECT_NEAR(predicted.mean,
              std::cbrt(models.at("log-log") * models.at("1/efficiency") * models.at("extra-p")), 1e-9);
  EXPECT_THAT(models, SizeIs(5)) << "the laws are shown";
  EXPECT_LT(predicted.low, predicted.mean);
  EXPECT_GT(predicted.high, predicted.mean);
}

// --- Published curves: the larger sizes are predicted from the smaller ones. docs/users/predictions.md has this table.

struct Published {
  const char* curve;
  Sizes measured;
  MeasuredSize held_out;
  double error;  // in percent
  bool covered;
};

// Images/s of ResNet-50 on V100 GPUs with Horovod over 25 Gbit/s, from github.com/horovod/horovod/issues/779.
const Sizes kHorovod = {{1, 872}, {8, 6679}, {16, 12828}, {32, 23870}, {64, 47195}, {128, 89783}};
// ResNet-50 on H100 GPUs, trainings an hour: MLPerf Training v3.0, entries 2053, 2071, 2068 and 2075 (13.466,
// 2.664, 0.509 and 0.369 minutes).
const Sizes kMlperf = {{8, 60 / 13.466}, {64, 60 / 2.664}, {512, 60 / 0.509}, {768, 60 / 0.369}};
// Images/s of ResNet-50 on V100 GPUs in a cloud (github.com/aws-samples/deep-learning-models/issues/2).
const Sizes kCloud = {{1, 740}, {2, 1481.3}, {8, 5000}, {16, 9860}, {32, 21300}, {64, 37000}};
// Speedup of PyTorch DDP, ResNet-44 on CIFAR-10, on V100 GPUs (Mahon et al., CCGRID 2020). The abstract has no
// other point, so only the base of one GPU is below it.
const Sizes kDdp = {{1, 1}, {12, 10.11}};

Sizes First(const Sizes& sizes, size_t count) {
  return {sizes.begin(), sizes.begin() + static_cast<long>(count)};
}

std::vector<Published> AllPublished() {
  return {{"Horovod", First(kHorovod, 3), kHorovod[3], 2.6, true},
          {"Horovod", First(kHorovod, 3), kHorovod[4], -1.8, true},
          {"Horovod", First(kHorovod, 3), kHorovod[5], -3.5, true},
          {"Horovod", First(kHorovod, 4), kHorovod[4], -6.5, false},
          {"Horovod", First(kHorovod, 4), kHorovod[5], -10.0, true},
          {"Horovod", First(kHorovod, 5), kHorovod[5], 1.8, true},
          {"MLPerf", First(kMlperf, 3), kMlperf[3], 0.2, true},
          {"cloud", First(kCloud, 4), kCloud[4], -10.9, false},
          {"cloud", First(kCloud, 4), kCloud[5], -0.9, true},
          {"cloud", First(kCloud, 5), kCloud[5], 17.9, false}};
}

TEST(PublishedCurves, ErrorsAndIntervalsOfTheHeldOutPoints) {
  for (const Published& p : AllPublished()) {
    SCOPED_TRACE(testing::Message() << p.curve << " up to " << p.measured.back().ranks << " -> "
                                    << p.held_out.ranks);
    const PredictedThroughput predicted = PredictThroughput(p.measured, p.held_out.ranks, 0);
    EXPECT_NEAR(100 * (predicted.mean / p.held_out.throughput - 1), p.error, 0.051);
    EXPECT_EQ(predicted.low <= p.held_out.throughput && p.held_out.throughput <= predicted.high, p.covered);
  }
}

TEST(PublishedCurves, ACurveOfTwoSizesIsNotPredicted) {
  const SizesOfSeries base{.strong = true, .measured = {kDdp[0].ranks}, .ranks_per_node = 0};
  EXPECT_THAT(WhyNotPredict(base, kDdp[1].ranks),
              HasSubstr("only 1 world size has results, and the models need three"));
  // Two sizes do not determine the models either.
  const SizesOfSeries both{.strong = true, .measured = {kDdp[0].ranks, kDdp[1].ranks}, .ranks_per_node = 0};
  EXPECT_THAT(WhyNotPredict(both, 2 * kDdp[1].ranks),
              HasSubstr("only 2 world sizes have results, and the models need three"));
}

// The result of PredictThroughput if the laws amdahl and usl were part of the mean and the envelope.
PredictedThroughput PredictWithLaws(const Sizes& measured, int ranks) {
  constexpr double kPerDoubling = 0.04;
  PredictedThroughput with;
  with.models = PredictByModels(measured, ranks);
  double logs = 0, least = HUGE_VAL, most = 0;
  for (const auto& [name, throughput] : with.models) {
    logs += std::log(throughput);
    least = std::min(least, throughput);
    most = std::max(most, throughput);
  }
  const double margin = kPerDoubling * std::log2(static_cast<double>(ranks) / measured.back().ranks);
  with.mean = std::exp(logs / static_cast<double>(with.models.size()));
  with.low = least * (1 - margin);
  with.high = most * (1 + margin);
  return with;
}

// The reason for leaving out the laws, with the figures of docs/users/predictions.md.
TEST(PublishedCurves, TheLawsWouldMakeErrorsAndIntervalsLarger) {
  std::vector<double> errors, errors_with, widths, widths_with;
  int covered_with = 0;
  for (const Published& p : AllPublished()) {
    const double measured = p.held_out.throughput;
    const PredictedThroughput without = PredictThroughput(p.measured, p.held_out.ranks, 0),
                              with = PredictWithLaws(p.measured, p.held_out.ranks);
    errors.push_back(100 * std::abs(without.mean / measured - 1));
    errors_with.push_back(100 * std::abs(with.mean / measured - 1));
    widths.push_back(100 * (std::sqrt(without.high / without.low) - 1));
    widths_with.push_back(100 * (std::sqrt(with.high / with.low) - 1));
    covered_with += with.low <= measured && measured <= with.high;
  }
  EXPECT_NEAR(analysis::Median(errors), 3.1, 0.051);
  EXPECT_NEAR(analysis::Median(errors_with), 8.7, 0.051);
  EXPECT_NEAR(analysis::Median(widths), 10.1, 0.051);
  EXPECT_NEAR(analysis::Median(widths_with), 16.4, 0.051);
  EXPECT_EQ(covered_with, 8);
}

// The service needs 20 scores. The other curves have only four to nine scores, so this test uses the largest
// of them as the factor.
TEST(PublishedCurves, NineOfTenAreWithinTheirIntervalsCorrectedByTheOtherCurves) {
  std::vector<db::PredictionRow> rows;
  for (const Published& p : AllPublished()) {
    const PredictedThroughput predicted = PredictThroughput(p.measured, p.held_out.ranks, 0);
    db::PredictionRow& row = rows.emplace_back();
    row.study_name = p.curve;
    row.predicted = predicted.mean, row.low = predicted.low, row.high = predicted.high;
    row.measured = p.held_out.throughput;
  }
  int before = 0, after = 0;
  for (const db::PredictionRow& row : rows) {
    std::vector<double> others;
    for (const db::PredictionRow& other : rows) {
      if (other.study_name != row.study_name) others.push_back(ConformalScore(other));
    }
    before += ConformalScore(row) <= 1;
    after += ConformalScore(row) <= ConformalFactor(others, 1);
  }
  EXPECT_EQ(before, 7);
  EXPECT_EQ(after, 9);
}

// The other columns of the table: the errors of the models, in percent, and the prediction with its interval.
TEST(PublishedCurves, TheModelsAndTheirEnvelopesAreThoseOfTheTable) {
  struct Row {
    double laws, log_log, inverse, extra_p;  // both laws have the same error
    double mean, low, high;
  };
  constexpr Row kTable[] = {
      {-1.3, 3.2, 3.4, 1.3, 24497, 23213, 25664},      {-13.9, 0.3, 0.7, -6.3, 46339, 40693, 51343},
      {-29.1, 1.2, 2.1, -13.2, 86606, 68582, 102713},  {-12.5, -5.9, -5.4, -8.1, 44130, 41617, 46418},
      {-27.2, -7.9, -6.7, -15.1, 80811, 70090, 90516}, {-14.4, 3.9, 3.9, -2.3, 91418, 84223, 97058},
      {-20.1, 0.1, 1.9, -1.3, 162.9, 156.7, 169.5},    {-25.2, -8.7, -8.7, -15.1, 18983, 17366, 20226},
      {-35.6, 3.6, 3.7, -9.5, 36652, 30793, 41435},    {-7.1, 24.4, 25.2, 5.2, 43605, 37352, 48163}};
  const std::vector<Published> published = AllPublished();
  ASSERT_EQ(published.size(), std::size(kTable));
  for (size_t i = 0; i < published.size(); ++i) {
    const Published& p = published[i];
    const Row& row = kTable[i];
    SCOPED_TRACE(testing::Message() << p.curve << " -> " << p.held_out.ranks << ", row " << i);
    const PredictedThroughput predicted = PredictThroughput(p.measured, p.held_out.ranks, 0);
    const auto error = [&](const char* model) {
      return 100 * (predicted.models.at(model) / p.held_out.throughput - 1);
    };
    EXPECT_NEAR(error("amdahl"), row.laws, 0.051);
    EXPECT_NEAR(error("usl"), row.laws, 0.051);
    EXPECT_NEAR(error("log-log"), row.log_log, 0.051);
    EXPECT_NEAR(error("1/efficiency"), row.inverse, 0.051);
    EXPECT_NEAR(error("extra-p"), row.extra_p, 0.051);
    const double rounding = row.mean < 1000 ? 0.051 : 0.51;
    EXPECT_NEAR(predicted.mean, row.mean, rounding);
    EXPECT_NEAR(predicted.low, row.low, rounding);
    EXPECT_NEAR(predicted.high, row.high, rounding);
  }
}

}  // namespace
}  // namespace scalelab::server
