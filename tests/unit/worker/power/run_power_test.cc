#include "worker/power/run_power.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "events/event_line.h"

namespace scalelab::worker {
namespace {

using ::testing::DoubleNear;
using ::testing::IsEmpty;
using ::testing::IsNan;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

// Readings every 0.1 s from second 100 to second 200: 50 W until second 110, then 250 W.
std::shared_ptr<PowerHistory> Readings() {
  auto history = std::make_shared<PowerHistory>();
  for (int i = 0; i <= 1000; ++i) {
    const double time = 100 + i / 10.0;
    const bool busy = time >= 110;
    PowerReading reading{.time = time};
    reading.values = {busy ? 500 + 250 * (time - 110) : 50 * (time - 100), busy ? 0.75 : 0, busy ? 250.0 : 50,
                      1500, 0};
    reading.memory_bytes = busy ? 4e9 : 1e9;
    history->Add(reading);
  }
  return history;
}

class RunPowerTest : public ::testing::Test {
 protected:
  RunPowerTest() { spec_.set_warmup_steps(1); }

  void Step(double time, double seconds) {
    Line(absl::StrCat(R"({"time":)", time, R"(,"event":"step","step":)", step_++,
                      R"(,"metrics":{"step/total_s":)", seconds, R"(,"train/loss":2}})"));
  }
  void Line(const std::string& line) { builder_.Add(line, lines_++); }
  // Passes the lines since the last call as one batch, and returns it.
  v1::EventBatch Observe() {
    v1::EventBatch batch = builder_.Take();
    batch.set_begin_line(sent_);
    batch.set_end_line(sent_ = lines_);
    if (!power_) power_.emplace(spec_, history_);
    power_->Observe(batch);
    return batch;
  }
  std::map<std::string, double> Finish(double time, const std::string& metrics = "") {
    Line(absl::StrCat(R"({"time":)", time, R"(,"event":"finish","metrics":{)", metrics, "}}"));
    return Metrics(Observe());
  }
  static std::map<std::string, double> Metrics(const v1::EventBatch& batch) {
    const auto& metrics = batch.events(batch.events_size() - 1).metrics();
    return {metrics.begin(), metrics.end()};
  }

  v1::RunSpec spec_;
  std::shared_ptr<PowerHistory> history_ = Readings();
  BatchBuilder builder_;
  std::optional<RunPower> power_;
  int step_ = 0;
  int64_t lines_ = 0, sent_ = 0;
};

TEST_F(RunPowerTest, TheWindowIsTheMeasuredStepsWithoutThePausesBetweenThem) {
  Line(R"({"time":101,"event":"start","framework":"f","version":"v","rank":0,"world_size":1})");
  Step(109, 8);  // warm-up
  Step(112, 2);
  Step(114, 2);
  Line(R"({"time":150,"event":"epoch","epoch":0,"metrics":{"eval/accuracy":0.5}})");
  Step(152, 2);
  const auto metrics = Finish(160, R"("run/throughput_mean":50)");
  EXPECT_THAT(metrics, IsSupersetOf({Pair("run/energy_joules", DoubleNear(6 * 250, 1e-6)),
                                     Pair("run/joules_per_sample", DoubleNear(5, 1e-9)),
                                     Pair("run/gpu_utilisation", DoubleNear(0.75, 1e-9)),
                                     Pair("run/gpu_power_w", DoubleNear(250, 1e-6)),
                                     Pair("run/gpu_clock_mhz", DoubleNear(1500, 1e-6)),
                                     Pair("run/gpu_throttled", DoubleNear(0, 0)),
                                     Pair("run/gpu_memory_bytes", DoubleNear(4e9, 0))}));
}

TEST_F(RunPowerTest, StepsThatAreReportedTogetherCountEachWithItsOwnTime) {
  for (int i = 0; i < 4; ++i) Step(120, 1);
  EXPECT_THAT(Finish(121), IsSupersetOf({Pair("run/energy_joules", DoubleNear(750, 1e-6))}));
}

TEST_F(RunPowerTest, ABatchThatIsSentAgainChangesNothing) {
  Step(115, 1);
  Step(116, 1);
  Step(117, 1);
  v1::EventBatch batch = Observe();
  power_->Observe(batch);
  Line(R"({"time":118,"event":"finish","metrics":{}})");
  batch = Observe();
  const auto first = Metrics(batch);
  EXPECT_NEAR(first.at("run/energy_joules"), 500, 1e-6);
  power_->Observe(batch);
  EXPECT_EQ(Metrics(batch), first);
  for (const v1::PointColumn& column : batch.columns()) EXPECT_EQ(column.line_size(), 1) << column.key();
}

TEST_F(RunPowerTest, TheColumnsOfTheBatchHaveTheMetricsToo) {
  Step(115, 1);
  Step(117, 2);
  Line(R"({"time":118,"event":"finish","metrics":{}})");
  const v1::EventBatch batch = Observe();
  const auto column = std::find_if(batch.columns().begin(), batch.columns().end(),
                                   [](const auto& of) { return of.key() == "run/energy_joules"; });
  ASSERT_NE(column, batch.columns().end());
  EXPECT_EQ(column->line(0), 2);
  EXPECT_EQ(column->step(0), -1);
  EXPECT_EQ(column->time(0), 118);
  EXPECT_NEAR(column->value(0), 500, 1e-6);
}

TEST_F(RunPowerTest, WhatTheProgramReportsItselfStays) {
  Step(115, 1);
  Step(117, 2);
  EXPECT_EQ(Finish(118, R"("run/energy_joules":7)")["run/energy_joules"], 7);
}

TEST_F(RunPowerTest, WithoutTheirTimesStepsLastSinceTheStepBefore) {
  spec_.set_global_batch(100);
  for (const int time : {120, 122, 124})
    Line(absl::StrCat(R"({"time":)", time, R"(,"event":"step","step":0,"metrics":{"train/loss":1}})"));
  const auto metrics = Finish(125);
  EXPECT_NEAR(metrics.at("run/energy_joules"), 1000, 1e-6);
  EXPECT_NEAR(metrics.at("run/joules_per_sample"), 5, 1e-9);
}

TEST_F(RunPowerTest, WithoutStepsTheWholeProgramIsMeasured) {
  Line(R"({"time":120,"event":"start","framework":"f","version":"v","rank":0,"world_size":1})");
  const auto metrics = Finish(130);
  EXPECT_NEAR(metrics.at("run/energy_joules"), 2500, 1e-6);
  EXPECT_THAT(metrics, Not(testing::Contains(Key("run/joules_per_sample"))));
}

TEST_F(RunPowerTest, WithoutAMeasuredStepThereIsNoFigure) {
  Step(120, 5);
  EXPECT_THAT(Finish(121), IsEmpty());
}

TEST_F(RunPowerTest, AWindowThatTheReadingsDoNotCoverHasNoEnergy) {
  Step(99, 1);
  Step(120, 21);
  EXPECT_THAT(Finish(121), testing::ElementsAre(Pair("run/gpu_memory_bytes", 4e9)));
}

TEST_F(RunPowerTest, AWindowOfLessThanASecondHasNoFigure) {
  Step(119, 0.3);
  Step(120, 0.3);
  EXPECT_THAT(Finish(121), IsEmpty());
}

TEST_F(RunPowerTest, OfCpusOnlyTheEnergyIsKnown) {
  history_ = std::make_shared<PowerHistory>();
  for (int i = 0; i < 200; ++i) {
    PowerReading reading{.time = 100 + i / 10.0};
    reading.values[kJoules] = i;
    history_->Add(reading);
  }
  Step(105, 1);
  Step(107, 2);
  EXPECT_THAT(Finish(107.5), testing::ElementsAre(Pair("run/energy_joules", DoubleNear(20, 1e-6))));
}

TEST(PowerHistory, AQuantityThatWasUnknownOnceStaysUnknown) {
  PowerHistory history;
  for (int i = 0; i < 50; ++i) {
    PowerReading reading{.time = i / 10.0};
    reading.values = {i == 20 ? std::nan("") : i, 1, 1, 1, 1};
    history.Add(reading);
  }
  EXPECT_NEAR(history.Between(0.5, 1.5)[kJoules], 10, 1e-9);
  EXPECT_THAT(history.Between(3, 4)[kJoules], IsNan());
  EXPECT_NEAR(history.Between(3, 4)[kWatts], 1, 1e-9);
}

TEST(PowerHistory, ACounterThatStartsAgainIsUnknown) {
  PowerHistory history;
  for (int i = 0; i < 50; ++i) {
    PowerReading reading{.time = i / 10.0};
    reading.values[kJoules] = i < 25 ? 1000 + i : i;
    history.Add(reading);
  }
  EXPECT_THAT(history.Between(2, 3)[kJoules], IsNan());
}

TEST(PowerHistory, ALongAttemptKeepsItsWholeEnergyInABoundedNumberOfReadings) {
  PowerHistory history;
  for (int i = 0; i <= 200'000; ++i) {
    PowerReading reading{.time = i / 10.0};
    reading.values = {i * 10.0, 1, 1, 1, 1};
    history.Add(reading);
  }
  EXPECT_NEAR(history.Between(1, 20'000)[kJoules], 1'999'900, 1e-3);
  EXPECT_NEAR(history.Between(19'990, 20'000.5)[kJoules], 1050, 1e-3) << "a little after the last reading";
  EXPECT_THAT(history.Between(19'990, 20'002)[kJoules], IsNan());
}

}  // namespace
}  // namespace scalelab::worker
