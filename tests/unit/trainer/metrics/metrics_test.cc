#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "nlohmann/json.hpp"
#include "worker/trainer/errors.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/metrics/histogram.h"
#include "worker/trainer/metrics/parameter_hash.h"
#include "worker/trainer/metrics/run_meter.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {
namespace {

using nlohmann::json;

class EventFile : public testing::Test {
 protected:
  ~EventFile() override { std::filesystem::remove(path_); }
  std::vector<json> Lines() {
    std::ifstream file(path_);
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }
  std::string path_ = testing::TempDir() + "/events-" + std::to_string(getpid());
};

TEST_F(EventFile, HoldsOneJsonObjectALineInTheOrderOfTheCalls) {
  {
    EventWriter events(path_);
    events.Start(1, 4, 32, "AMD EPYC \"9654\"");
    for (int step = 0; step < 1000; ++step) {
      const Metric metrics[] = {{"train/loss", 1.0 / (step + 1)}, {"step/total_s", 1e-7 * step}};
      events.Step(step / 100, step, metrics);
    }
    const Metric epoch[] = {{"eval/accuracy", 0.5}};
    events.Epoch(9, epoch);
    EXPECT_EQ(Lines().size(), 1002u) << "an epoch event must not wait for the timer";
    events.Finish({}, "00ff00ff00ff00ff");
  }
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 1003u);
  EXPECT_EQ(lines[0]["event"], "start");
  EXPECT_EQ(lines[0]["rank"], 1);
  EXPECT_EQ(lines[0]["world_size"], 4);
  EXPECT_EQ(lines[0]["total_steps"], 32);
  EXPECT_EQ(lines[0]["device"], "AMD EPYC \"9654\"");
  EXPECT_GT(lines[0]["time"].get<double>(), 1.7e9);
  EXPECT_EQ(lines[7]["step"], 6);
  EXPECT_EQ(lines[7]["metrics"]["train/loss"].get<double>(), 1.0 / 7);
  EXPECT_EQ(lines[7]["metrics"]["step/total_s"].get<double>(), 1e-7 * 6);
  EXPECT_EQ(lines[1001]["metrics"]["eval/accuracy"], 0.5);
  EXPECT_EQ(lines[1002]["parameter_hash"], "00ff00ff00ff00ff");
}

TEST_F(EventFile, HasAllStepsAfterASync) {
  EventWriter events(path_);
  events.Step(0, 0, {});
  events.Step(0, 1, {});
  events.Sync();
  EXPECT_EQ(Lines().size(), 2u);
}

TEST_F(EventFile, IsAppendedTo) {
  { EventWriter(path_).Start(0, 1, 1, ""); }
  { EventWriter(path_).Start(0, 1, 1, ""); }
  EXPECT_EQ(Lines().size(), 2u);
}

TEST_F(EventFile, CarriesWhatIsNotFiniteAsText) {
  {
    EventWriter events(path_);
    const double infinity = std::numeric_limits<double>::infinity();
    const Metric metrics[] = {{"a", std::nan("")}, {"b", infinity}, {"c", -infinity}};
    events.Step(0, 0, metrics);
  }
  EXPECT_EQ(Lines().at(0)["metrics"], json({{"a", "NaN"}, {"b", "Infinity"}, {"c", "-Infinity"}}));
}

TEST_F(EventFile, CarriesAnyErrorMessage) {
  {
    EventWriter events(path_);
    events.Error("quote \" backslash \\ tab \t bad \xff utf-8", "data");
  }
  EXPECT_THAT(Lines().at(0)["message"].get<std::string>(),
              testing::HasSubstr("quote \" backslash \\ tab \t bad"));
  EXPECT_EQ(Lines().at(0)["kind"], "data");
}

TEST(EventWriter, NamesAFileThatCannotBeOpened) {
  try {
    EventWriter events("/no/such/folder/events");
    FAIL();
  } catch (const TrainerError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/no/such/folder/events"));
  }
}

TEST(EventWriter, ReportsThatTheLastEventCouldNotBeWritten) {
  EventWriter events("/dev/full");
  try {
    events.Finish({}, "00ff00ff00ff00ff");
    FAIL();
  } catch (const TrainerError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cannot write the event file /dev/full: No space left"));
  }
}

TEST(EventWriter, ReportsBeforeACheckpointThatAStepCouldNotBeWritten) {
  EventWriter events("/dev/full");
  events.Step(0, 0, {});
  try {
    events.Sync();
    FAIL();
  } catch (const TrainerError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cannot write the event file /dev/full: No space left"));
  }
}

TEST(EventWriter, SyncsAFileThatHasNothingToSync) {
  EventWriter events("/dev/null");
  events.Step(0, 0, {});
  EXPECT_NO_THROW(events.Sync());
}

TEST(RunMeter, MeasuresAfterWarmUp) {
  RunMeter meter(2, 100);
  for (double total : {9.0, 9.0, 1.0, 2.0, 6.0}) {
    meter.Add({.total = total,
               .data = total / 8,
               .forward = total / 4,
               .backward = total / 4,
               .comm_exposed = total / 2,
               .comm_total = total},
              100);
  }
  std::vector<Metric> metrics;
  meter.AppendTo(metrics, 1000);
  EXPECT_EQ(meter.steps(), 5);
  EXPECT_EQ(meter.measured(), 3);
  EXPECT_DOUBLE_EQ(meter.MeanCompute(), 1.5);
  EXPECT_THAT(metrics,
              testing::ElementsAre(Metric("run/throughput", 50), Metric("run/throughput_mean", 100 / 3.0),
                                   Metric("run/step_seconds", 2), Metric("run/epoch_seconds", 20),
                                   Metric("run/mean_step_s", 3), Metric("run/data_s", 0.375),
                                   Metric("run/comm_share", 0.5), Metric("run/comm_exposed_s", 1.5),
                                   Metric("run/comm_total_s", 3)));
}

TEST(RunMeter, SaysNothingWhenEveryStepWasWarmUp) {
  RunMeter meter(2, 100);
  meter.Add({.total = 1}, 100);
  std::vector<Metric> metrics;
  meter.AppendTo(metrics, 1000);
  EXPECT_TRUE(metrics.empty());
}

TEST(RunMeter, CountsASmallerStepByItsSamples) {
  RunMeter meter(0, 100);
  meter.Add({.total = 2.0}, 100);
  meter.Add({.total = 2.0}, 100);
  meter.Add({.total = 1.0}, 25);  // a full step would take 4 s
  std::vector<Metric> metrics;
  meter.AppendTo(metrics, 225);
  EXPECT_THAT(metrics, testing::ElementsAre(Metric("run/throughput", 50), Metric("run/throughput_mean", 45),
                                            Metric("run/step_seconds", 2), Metric("run/epoch_seconds", 4.5),
                                            Metric("run/mean_step_s", 5 / 3.0), Metric("run/data_s", 0),
                                            Metric("run/comm_share", 0), Metric("run/comm_exposed_s", 0)));
}

TEST(RunMeter, AveragesTheSquaresOfFullStepsAfterTheWarmUp) {
  RunMeter meter(1, 100);
  const auto add = [&](double of_rank, double of_mean, int64_t samples) {
    meter.Add({.total = 1}, samples);
    meter.AddSquares(of_rank, of_mean, samples);
  };
  add(1000, 1000, 100);  // warm-up
  add(10, 4, 100);
  add(std::nan(""), 4, 100);
  add(20, std::numeric_limits<double>::infinity(), 100);
  add(1000, 1000, 50);  // a smaller batch has more noise
  add(14, 5, 100);
  std::vector<Metric> metrics;
  meter.AppendTo(metrics, 1000);
  EXPECT_THAT(metrics, testing::IsSupersetOf(
                           {Metric("run/rank_gradient_norm2", 12), Metric("run/mean_gradient_norm2", 4.5)}));
}

TEST(Median, IsTheMiddleOrTheMeanOfTheTwo) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
}

TEST(Histogram, HasTheSmallestNumberThatAShareDoesNotExceed) {
  Histogram histogram;
  EXPECT_EQ(histogram.Percentile(99), 0) << "it is empty";
  for (int64_t number = 100; number > 0; --number) histogram.Add(number);
  EXPECT_EQ(histogram.count(), 100);
  EXPECT_EQ(histogram.Mean(), 50.5);
  EXPECT_EQ(histogram.most(), 100);
  EXPECT_EQ(histogram.Percentile(50), 50);
  EXPECT_EQ(histogram.Percentile(90), 90);
  EXPECT_EQ(histogram.Percentile(99), 99);
  EXPECT_EQ(histogram.Percentile(100), 100);
  for (int i = 0; i < 900; ++i) histogram.Add(0);
  EXPECT_EQ(histogram.Percentile(90), 0) << "900 of 1000 numbers are 0";
  EXPECT_EQ(histogram.Percentile(91), 10);
}

TEST(Histogram, HasOneBinForAllLargeNumbers) {
  Histogram histogram;
  histogram.Add(Histogram::kBins - 2);
  EXPECT_EQ(histogram.Percentile(50), Histogram::kBins - 2);
  histogram.Add(Histogram::kBins + 10);
  histogram.Add(1'000'000);
  EXPECT_EQ(histogram.Percentile(50), Histogram::kBins - 1);
  EXPECT_EQ(histogram.Percentile(99), Histogram::kBins - 1);
  EXPECT_EQ(histogram.most(), 1'000'000) << "the maximum is exact";
  EXPECT_EQ(histogram.Mean(), (2.0 * Histogram::kBins + 8 + 1'000'000) / 3);
}

TEST(Histogram, AddsTheNumbersOfOthers) {
  Histogram first, second, both;
  for (const int number : {1, 1, 4}) first.Add(number);
  for (const int number : {2, 9}) second.Add(number);
  both.AddState(first.State());
  both.AddState(second.State());
  EXPECT_EQ(both.count(), 5);
  EXPECT_EQ(both.Mean(), 3.4);
  EXPECT_EQ(both.most(), 9);
  EXPECT_EQ(both.Percentile(50), 2);
  EXPECT_EQ(both.Percentile(80), 4);
  EXPECT_EQ(both.Percentile(81), 9);
  // Earlier versions stored only the sum, the count and the maximum.
  both.AddState(at::tensor({10.0, 5.0, 7.0}, at::kDouble));
  EXPECT_EQ(both.Mean(), 2.7);
  EXPECT_EQ(both.most(), 9);
  EXPECT_EQ(both.Percentile(50), 2);
}

TEST(StragglerSkew, ComparesTheSlowestWithTheMean) {
  EXPECT_EQ(StragglerSkew({1, 1, 1, 1}), 0);
  EXPECT_EQ(StragglerSkew({1, 3}), 0.5);
  EXPECT_EQ(StragglerSkew({1, 3, kDoesNotTrain}), 0.5);
}

// Steps that are replayed as one graph have no parts. A skew of 0 would mean that the ranks are equally fast.
TEST(StragglerSkew, IsAbsentIfTheTimesOfARankAreUnknown) {
  EXPECT_EQ(StragglerSkew({0, 0}), std::nullopt);
  EXPECT_EQ(StragglerSkew({1, 0}), std::nullopt);
  EXPECT_EQ(StragglerSkew({kDoesNotTrain}), std::nullopt);
  RunMeter meter(0, 8);
  meter.Add({.total = 2, .forward = 1}, 8);
  EXPECT_EQ(meter.MeanCompute(), 1);
  meter.AddWhole({.total = 2}, 8);
  EXPECT_EQ(meter.MeanCompute(), 0);
}

TEST(ProcessFigures, AreThere) {
  EXPECT_GT(PeakResidentBytes(), 1 << 20);
  EXPECT_GT(ProcessCpuSeconds(), 0);
}

TEST(ParameterHash, DependsOnEveryBitButNotOnTheMemoryFormat) {
  const at::Tensor t = at::arange(2 * 3 * 4 * 5).to(at::kFloat).view({2, 3, 4, 5});
  const std::string hash = ParameterHash({t});
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(ParameterHash({t.contiguous(at::MemoryFormat::ChannelsLast)}), hash);
  at::Tensor other = t.clone();
  other.view({-1})[119] += 1e-5f;
  EXPECT_NE(ParameterHash({other}), hash);
  EXPECT_NE(ParameterHash({t, at::zeros({1})}), hash);
  EXPECT_NE(ParameterHash({at::zeros({3})}), ParameterHash({at::zeros({4})}));
}

}  // namespace
}  // namespace scalelab::trainer
