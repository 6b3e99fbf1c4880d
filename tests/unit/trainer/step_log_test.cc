#include "worker/trainer/metrics/step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "nlohmann/json.hpp"

namespace scalelab::trainer {
namespace {

using nlohmann::json;

class StepLogTest : public testing::Test {
 protected:
  StepLogTest() : path_(testing::TempDir() + "/step-log-" + std::to_string(getpid())), events_(path_) {}
  ~StepLogTest() override { std::filesystem::remove(path_); }

  static StepRecord Step(int64_t step, std::vector<double> numbers) {
    return {.epoch = 1,
            .step = step,
            .rate = 0.5,
            .samples = 8,
            .global_samples = 32,
            .bytes = 7,
            .marks = StepMarks(at::kCPU),
            .numbers = at::tensor(numbers, at::kDouble)};
  }
  std::vector<json> Lines() {
    events_.Epoch(1, {});  // flushes the earlier events to the file
    std::ifstream file(path_);
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    lines.pop_back();
    return lines;
  }

  std::string path_;
  EventWriter events_;
  RunMeter meter_{0, 32};
};

TEST_F(StepLogTest, ReportsStepsInTheirOrderAndAddsThemUp) {
  StepLog log(events_, meter_, at::kCPU, 0);
  log.BeginEpoch();
  for (int i = 0; i < 3; ++i) {
    StepRecord record = Step(i, {2.0 + i, 5, 10.0 + i, 4});
    record.marks.Mark(&StepTimes::data);
    record.marks.Mark(nullptr);
    record.marks.Mark(&StepTimes::forward);
    log.Add(std::move(record));
  }
  const EpochSums sums = log.EndEpoch();
  EXPECT_EQ(sums.loss, (2 + 3 + 4) * 8);
  EXPECT_EQ(sums.correct, 15);
  EXPECT_EQ(sums.samples, 24);
  EXPECT_GT(sums.seconds, 0);
  EXPECT_EQ(meter_.measured(), 3);
  std::vector<Metric> run;
  meter_.AppendTo(run, 100);
  EXPECT_THAT(run, testing::IsSupersetOf(
                       {Metric("run/rank_gradient_norm2", 11), Metric("run/mean_gradient_norm2", 4)}));
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  double total = 0;
  for (int i = 0; i < 3; ++i) {
    const json& m = lines[i]["metrics"];
    EXPECT_EQ(lines[i]["step"], i);
    EXPECT_EQ(m["train/loss"], 2.0 + i);
    EXPECT_EQ(m["comm/bytes"], 7);
    EXPECT_EQ(m["train/learning_rate"], 0.5);
    EXPECT_FALSE(m.contains("train/loss_scale"));
    EXPECT_LE(m["step/data_s"].get<double>() + m["step/forward_s"].get<double>(),
              m["step/total_s"].get<double>());
    total += m["step/total_s"].get<double>();
  }
  EXPECT_NEAR(total, sums.seconds, 1e-9) << "steps follow each other without a gap";
}

// Returns device events, one after another.
std::vector<std::shared_ptr<const DeviceEvent>> Events(int count) {
  std::vector<std::shared_ptr<const DeviceEvent>> events;
  for (int i = 0; i < count; ++i) {
    events.push_back(std::make_shared<const DeviceEvent>(at::kCPU));
    while (DeviceEvent(at::kCPU).SecondsSince(*events.back()) <= 0) continue;
  }
  return events;
}

TEST(StepMarks, CountTimeWithSeveralOperationsInProgressOnce) {
  // Three operations last from the first event to the third, from the second to the third,
  // and from the third to the fourth.
  const auto events = Events(4);
  StepMarks marks(at::kCPU);
  marks.Communicated({{events[0], events[2]}, {events[1], events[2]}, {events[2], events[3]}});
  StepTimes times;
  marks.AddTo(times);
  EXPECT_GT(times.comm_total, 0);
  EXPECT_DOUBLE_EQ(times.comm_total,
                   events[2]->SecondsSince(*events[0]) + events[3]->SecondsSince(*events[2]));
}

// native/zero3 reports the times of reductions before those of gathers.
TEST(StepMarks, CountOperationsInAnyOrder) {
  const auto events = Events(6);
  StepMarks marks(at::kCPU);
  marks.Communicated({{events[4], events[5]}});
  marks.Communicated({{events[0], events[1]}, {events[2], events[3]}});
  StepTimes times;
  marks.AddTo(times);
  EXPECT_NEAR(times.comm_total,
              events[1]->SecondsSince(*events[0]) + events[3]->SecondsSince(*events[2]) +
                  events[5]->SecondsSince(*events[4]),
              1e-12);
}

TEST_F(StepLogTest, TellsOnlyTheTotalOfAStepThatIsReplayed) {
  StepLog log(events_, meter_, at::kCPU, 1);
  log.BeginEpoch();
  StepRecord record = Step(0, {1, 2, std::nan(""), std::nan(""), 1024, 1});
  record.whole = true;
  log.Add(std::move(record));
  EXPECT_EQ(log.EndEpoch().left_out, 1);
  const json metrics = Lines().at(0)["metrics"];
  EXPECT_TRUE(metrics.contains("step/total_s"));
  EXPECT_EQ(metrics["train/loss_scale"], 1024);
  for (const char* part : {"step/forward_s", "step/backward_s", "step/comm_exposed_s", "step/optimizer_s",
                           "train/learning_rate"}) {
    EXPECT_FALSE(metrics.contains(part)) << part;
  }
  std::vector<Metric> run;
  meter_.AppendTo(run, 100);
  for (const Metric& metric : run) EXPECT_NE(metric.first, "run/comm_share") << "it is not known";
}

}  // namespace
}  // namespace scalelab::trainer
