#include "worker/output_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_split.h"
#include "google/protobuf/util/json_util.h"
#include "tests/unit/worker/temp_dir.h"
#include "worker/process/output_limit.h"

namespace scalelab::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(30);

class OutputMetricsTest : public ::testing::Test {
 protected:
  std::unique_ptr<OutputMetrics> Make(const std::string& extract) {
    google::protobuf::Struct rules;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(extract, &rules).ok());
    auto made =
        OutputMetrics::New(loop_, rules, {dir_ / "rank-0.out", dir_ / "rank-0.err"}, dir_ / "events-0.jsonl");
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }

  // Ends the program. Returns the error about missing metrics.
  std::string Finish(OutputMetrics& metrics, bool succeeded) {
    std::optional<std::string> problem;
    metrics.Finish(succeeded, [&](std::string text) { problem = std::move(text); });
    EXPECT_TRUE(loop_.RunUntil([&] { return problem.has_value(); }, kPatience));
    return problem.value_or("none came");
  }

  // Returns the event lines without their times.
  std::vector<std::string> Events() {
    std::vector<std::string> events;
    for (absl::string_view line : absl::StrSplit(ReadAll(dir_ / "events-0.jsonl"), '\n', absl::SkipEmpty())) {
      auto event = nlohmann::ordered_json::parse(line);
      EXPECT_GT(event["time"], 1e9);
      event.erase("time");
      events.push_back(event.dump());
    }
    return events;
  }

  TempDir dir_;
  EventLoop loop_;
};

TEST_F(OutputMetricsTest, WritesAStepForEachMatchWhileTheProgramRuns) {
  auto metrics = Make(R"j({"train/loss": {"regex": "loss=([0-9.]+)", "per": "step"},
                          "train/lr": {"regex": "lr=([0-9.]+)", "per": "step"}})j");
  metrics->Start();
  Append(dir_ / "rank-0.out", "hello\nloss=0.5 lr=0.1\nloss=0.");
  ASSERT_TRUE(loop_.RunUntil([&] { return !Events().empty(); }, kPatience));
  EXPECT_THAT(
      Events(),
      ElementsAre(R"({"event":"step","epoch":0,"step":0,"metrics":{"train/loss":0.5,"train/lr":0.1}})"))
      << "a line counts when it is complete";
  Append(dir_ / "rank-0.out", "25\n");
  EXPECT_EQ(Finish(*metrics, true), "");
  ASSERT_EQ(Events().size(), 3u);
  EXPECT_EQ(Events()[1], R"({"event":"step","epoch":0,"step":1,"metrics":{"train/loss":0.25}})");
  EXPECT_EQ(Events()[2], R"({"event":"finish","metrics":{}})");
}

TEST_F(OutputMetricsTest, TakesTheValueOfTheRunThatTheStudyNames) {
  auto metrics = Make(R"j({"a/first": {"regex": "x=(.*)", "per": "run", "take": "first"},
                          "a/last": {"regex": "x=(.*)", "per": "run", "take": "last"},
                          "a/max": {"regex": "x=(.*)", "per": "run", "take": "max"},
                          "a/mean": {"regex": "x=(.*)", "per": "run", "take": "mean"},
                          "a/min": {"regex": "x=(.*)", "per": "run", "take": "min"}})j");
  Append(dir_ / "rank-0.out", "x=4\nx=-2\nx=9\nx=1");
  EXPECT_EQ(Finish(*metrics, true), "");
  EXPECT_THAT(
      Events(),
      ElementsAre(
          R"({"event":"finish","metrics":{"a/first":4.0,"a/last":1.0,"a/max":9.0,"a/mean":3.0,"a/min":-2.0}})"))
      << "the last line needs no end";
}

TEST_F(OutputMetricsTest, TheStepMayBePartOfTheLine) {
  auto metrics =
      Make(R"j({"net/mbps": {"regex": "(?P<step>[0-9]+) bytes.* ([0-9.]+) Mbps", "per": "step"}})j");
  Append(dir_ / "rank-0.out", "0: 1 bytes 10 times --> 2.5 Mbps\r1: 64 bytes 10 times --> 90 Mbps\n");
  EXPECT_EQ(Finish(*metrics, true), "");
  ASSERT_EQ(Events().size(), 3u);
  EXPECT_EQ(Events()[1], R"({"event":"step","epoch":0,"step":64,"metrics":{"net/mbps":90.0}})");
}

TEST_F(OutputMetricsTest, NamesTheMetricThatIsNotInTheOutput) {
  auto metrics =
      Make(R"j({"a": {"regex": "a=(.*)", "per": "run"}, "b": {"regex": "b=(.*)", "per": "step"}})j");
  Append(dir_ / "rank-0.out", "a=1\n");
  EXPECT_THAT(Finish(*metrics, true),
              HasSubstr("No line that rank 0 wrote matches the regular expression of metric b"));
}

TEST_F(OutputMetricsTest, AFailedProgramFinishesNothing) {
  auto metrics = Make(R"j({"a": {"regex": "a=(.*)", "per": "run"}})j");
  Append(dir_ / "rank-0.out", "a=1\n");
  EXPECT_EQ(Finish(*metrics, false), "");
  EXPECT_THAT(Events(), IsEmpty());
}

TEST_F(OutputMetricsTest, ReadsLongOutputInPartsAndNumbersThatAreNotFinite) {
  auto metrics = Make(
      R"j({"a": {"regex": "^a=(.*)", "per": "run", "take": "mean"}, "z": {"regex": "z=(.*)", "per": "step"}})j");
  std::string text = "z=nan\n";
  for (int i = 0; i < 400000; ++i) text += "a=2\n" + std::string(i % 7, ' ') + "\n";
  Append(dir_ / "rank-0.out", text);
  EXPECT_EQ(Finish(*metrics, true), "");
  EXPECT_THAT(Events(), ElementsAre(R"({"event":"step","epoch":0,"step":0,"metrics":{"z":"NaN"}})",
                                    R"({"event":"finish","metrics":{"a":2.0}})"));
}

// A limit that cuts the output of rank 0 when it has more than 1 MiB.
class CutOutputTest : public OutputMetricsTest {
 protected:
  static constexpr int64_t kMiB = 1 << 20;

  CutOutputTest() {
    metrics_ = Make(R"j({"a": {"regex": "a=([0-9]+)", "per": "step"},
                         "mib": {"regex": "([0-9]+) MiB", "per": "run", "take": "min"}})j");
    metrics_->Start();
    limit_.Watch({dir_ / "rank-0.out", dir_ / "rank-0.err"}, [this](const std::string& path, int64_t size) {
      Append(path, std::exchange(written_before_cut_, {}));
      metrics_->BeforeCut(path, size);
    });
  }
  std::vector<std::string> Steps() {
    std::vector<std::string> steps;
    for (const std::string& event : Events()) {
      const auto json = nlohmann::json::parse(event);
      if (json["event"] == "step") steps.push_back(json["metrics"].dump());
    }
    return steps;
  }

  OutputLimit limit_{loop_, kMiB};
  std::unique_ptr<OutputMetrics> metrics_;
  std::string written_before_cut_;  // since the last look
};

TEST_F(CutOutputTest, HasTheLinesBeforeAndAfterTheCut) {
  Append(dir_ / "rank-0.out", "a=1\n5 MiB\n" + std::string(3 * kMiB, 'x') + "\n");
  written_before_cut_ = "a=2\na=";
  ASSERT_TRUE(loop_.RunUntil(
      [&] { return std::filesystem::file_size(dir_ / "rank-0.out") < static_cast<uintmax_t>(kMiB); },
      kPatience));
  Append(dir_ / "rank-0.out", "a=3\n");  // before the next look
  EXPECT_EQ(Finish(*metrics_, true), "");
  EXPECT_THAT(Steps(), ElementsAre(R"({"a":1.0})", R"({"a":2.0})", R"({"a":3.0})"));
  EXPECT_EQ(Events().back(), R"({"event":"finish","metrics":{"mib":5.0}})");
}

TEST_F(CutOutputTest, IsNotReadAfterTheMetricsWereReported) {
  Append(dir_ / "rank-0.out", "a=1\n" + std::string(3 * kMiB, 'x') + "\na=2\n7 MiB\n");
  EXPECT_EQ(Finish(*metrics_, true), "");
  const std::vector<std::string> events = Events();
  EXPECT_THAT(Steps(), ElementsAre(R"({"a":1.0})", R"({"a":2.0})"));
  limit_.Finish();
  EXPECT_EQ(Events(), events);
  EXPECT_LT(std::filesystem::file_size(dir_ / "rank-0.out"), static_cast<uintmax_t>(kMiB));
}

TEST_F(OutputMetricsTest, ReadsStandardErrorToo) {
  auto metrics =
      Make(R"j({"a": {"regex": "a=(.*)", "per": "run"}, "b": {"regex": "b=(.*)", "per": "run"}})j");
  Append(dir_ / "rank-0.out", "a=1\nunfinished");
  Append(dir_ / "rank-0.err", "b=2\n");
  EXPECT_EQ(Finish(*metrics, true), "");
  EXPECT_THAT(Events(), ElementsAre(R"({"event":"finish","metrics":{"a":1.0,"b":2.0}})"));
}

// The output of a program in a directory that the filesystem cannot read for a while.
class UnreadableOutputTest : public OutputMetricsTest {
 protected:
  UnreadableOutputTest() {
    google::protobuf::Struct rules;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(
                    R"j({"a": {"regex": "a=(.*)", "per": "run", "take": "last"}})j", &rules)
                    .ok());
    metrics_ = *OutputMetrics::New(stepped_, rules, {dir_ / "run/rank-0.out"}, dir_ / "events-0.jsonl");
    std::filesystem::create_directory(dir_ / "run");
    Append(dir_ / "run/rank-0.out", "a=1\n");
    metrics_->Start();
    Append(dir_ / "run/rank-0.out", "a=2\n");
    // A file in place of the directory: the path then fails with ENOTDIR.
    std::filesystem::rename(dir_ / "run", dir_ / "away");
    Append(dir_ / "run", "");
    metrics_->Finish(true, [this](std::string text) { problem_ = std::move(text); });
    stepped_.Step();
  }
  void Advance(absl::Duration duration) {
    now_ += duration;
    stepped_.Step();
  }

  absl::Duration now_ = absl::Seconds(1000);
  EventLoop stepped_{{[this] { return now_; }, [] { return uint64_t{1}; }}};
  std::unique_ptr<OutputMetrics> metrics_;
  std::optional<std::string> problem_;
};

TEST_F(UnreadableOutputTest, IsReadWhenTheFilesystemRespondsAgain) {
  EXPECT_FALSE(problem_.has_value()) << "a=1 is not the last value";
  std::filesystem::remove(dir_ / "run");
  std::filesystem::rename(dir_ / "away", dir_ / "run");
  Advance(absl::Seconds(1));
  EXPECT_EQ(problem_.value_or("none came"), "");
  EXPECT_THAT(Events(), ElementsAre(R"({"event":"finish","metrics":{"a":2.0}})"));
}

TEST_F(UnreadableOutputTest, IsGivenUpAfterAMinute) {
  Advance(absl::Seconds(59));
  EXPECT_FALSE(problem_.has_value());
  Advance(absl::Seconds(2));
  EXPECT_THAT(problem_.value_or("none came"), HasSubstr("Cannot read '" + (dir_ / "run/rank-0.out")));
  EXPECT_THAT(Events(), IsEmpty());
}

TEST_F(OutputMetricsTest, AProgramWithoutOutputLacksItsMetrics) {
  auto metrics = Make(R"j({"a": {"regex": "a=(.*)", "per": "run"}})j");
  EXPECT_THAT(Finish(*metrics, true), HasSubstr("metric a"));
}

}  // namespace
}  // namespace scalelab::worker
