#include "client/output/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "client/output/cells.h"
#include "client/output/printer.h"
#include "client/session/interrupt.h"
#include "client/session/progress.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Study;
using scalelab::v1::WatchStudyResponse;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Truly;

TEST(Text, ExactNumbersReadBackAsTheSame) {
  for (const double value : {0.1, 1.0 / 3, 1795000000.25, 1e-300, -5.0, 123456789012345678.0}) {
    EXPECT_EQ(std::strtod(Exact(value).c_str(), nullptr), value);
  }
  EXPECT_EQ(Exact(NAN), "nan");
  EXPECT_EQ(Exact(-INFINITY), "-inf");
}

scalelab::v1::Estimate AnEstimate(double mean) {
  scalelab::v1::Estimate estimate;
  estimate.set_mean(mean);
  return estimate;
}

std::vector<std::string> TextsOf(const std::vector<Cell>& row) {
  std::vector<std::string> texts;
  for (const Cell& cell : row) texts.push_back(cell.text);
  return texts;
}

TEST(Cells, AnEstimateHasAnIntervalIfBothEndsAreKnown) {
  scalelab::v1::Estimate estimate = AnEstimate(0.5);
  EXPECT_EQ(WithInterval(estimate, Percent), "50.0");
  EXPECT_EQ(DifferenceText(estimate), "+50.0");
  estimate.set_low(-0.25);
  EXPECT_EQ(WithInterval(estimate, Percent), "50.0");
  estimate.set_high(1.25);
  EXPECT_EQ(WithInterval(estimate, Percent), "50.0 [-25.0, 125.0]");
  EXPECT_EQ(DifferenceText(estimate), "+50.0 [-25.0, +125.0]");
}

TEST(Cells, CsvHasThreeExactNumbersForAnEstimate) {
  Section section;
  AddEstimateColumns("hours", section);
  ASSERT_EQ(section.columns.size(), 3u);
  EXPECT_EQ(section.columns[0].title, "hours_mean");
  EXPECT_EQ(section.columns[2].title, "hours_high");
  EXPECT_EQ(section.columns[1].in, Column::In::kCsv);
  std::vector<Cell> row;
  scalelab::v1::Estimate estimate = AnEstimate(0.1);
  estimate.set_low(-2);
  AddEstimateCells(&estimate, row);
  AddEstimateCells(nullptr, row);
  EXPECT_THAT(TextsOf(row), ElementsAre("0.1", "-2", "", "", "", ""));
}

TEST(Cells, AnAxisThatAKeyDoesNotHaveIsEmptyOrTheGivenText) {
  google::protobuf::Struct key;
  (*key.mutable_fields())["ranks"].set_number_value(4);
  EXPECT_EQ(AxisText(key, "ranks", "1"), "4");
  EXPECT_EQ(AxisText(key, "engine"), "");
  EXPECT_EQ(AxisText(key, "engine", "native/ddp"), "native/ddp");
}

TEST(Text, ShortNumbersKeepAboutFourDigits) {
  EXPECT_EQ(Short(81240.3), "81240");
  EXPECT_EQ(Short(812.44), "812.4");
  EXPECT_EQ(Short(12.345), "12.35");
  EXPECT_EQ(Short(0.0312), "0.0312");
  EXPECT_EQ(Short(0.00001234), "1.23e-05");
  EXPECT_EQ(Short(0), "0");
}

TEST(Text, NumbersOfKeysDoNotShowErrorsOfArithmetic) {
  google::protobuf::Value value;
  const std::pair<double, const char*> numbers[] = {{0.1 + 0.2, "0.3"}, {0.1, "0.1"},    {1e-7, "1e-07"},
                                                    {4, "4"},           {1e5, "100000"}, {-2.5, "-2.5"}};
  for (const auto& [number, text] : numbers) {
    value.set_number_value(number);
    EXPECT_EQ(ValueText(value), text);
  }
}

TEST(Text, SpansGrowTheirUnits) {
  EXPECT_EQ(Span(0.84), "0.8s");
  EXPECT_EQ(Span(42.2), "42s");
  EXPECT_EQ(Span(187), "3m07s");
  EXPECT_EQ(Span(7500), "2h05m");
  EXPECT_EQ(Span(4 * 86400 + 3 * 3600), "4d03h");
  EXPECT_EQ(Span(NAN), "-");
}

TEST(Text, BytesHaveBinaryUnits) {
  EXPECT_EQ(Bytes(512), "512 B");
  EXPECT_EQ(Bytes(1.25 * (1 << 30)), "1.25 GiB");
  EXPECT_EQ(Bytes(300.0 * (1 << 20)), "300 MiB");
}

TEST(Text, ControlCharactersNeverReachATerminal) {
  EXPECT_EQ(Printable("a\033[31mb\nc\x7f"), "a?[31mb c?");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J é"),
            "?2J é");
  EXPECT_EQ(Printable("run \u202e5 kcats\u2069 \u200eé…"), "run ?5 kcats? ?é…");
}

TEST(Text, CuttingCountsCharactersNotBytes) {
  EXPECT_EQ(Cut("größer", 6, "…"), "größer");
  EXPECT_EQ(Cut("größer", 4, "…"), "grö…");
  EXPECT_EQ(DisplayWidth("größer"), 6);
}

TEST(Text, WideCharactersNeedTwoColumnsAndCombiningOnesNone) {
  EXPECT_EQ(DisplayWidth("実験"), 4);
  EXPECT_EQ(DisplayWidth("🚀 1"), 4);
  EXPECT_EQ(DisplayWidth("e\u0301"), 1);
  EXPECT_EQ(Cut("実験の結果", 10, "…"), "実験の結果");
  EXPECT_EQ(Cut("実験の結果", 6, "…"), "実験…");
  EXPECT_EQ(Cut("実験の結果", 5, "…"), "実験…");
  EXPECT_EQ(Cut("実験の結果", 1, "…"), "…");
  EXPECT_EQ(Cut("e\u0301e\u0301e\u0301", 2, "…"), "e\u0301…");
  for (const char* broken : {"\xff", "\xe5\xae", "\xf8\x80\x80\x80\x80", "a\x80"})
    EXPECT_EQ(DisplayWidth(broken), 1) << broken;
}

TEST(Text, ColumnsAfterWideCharactersAreAligned) {
  Section section;
  section.columns = {{"name"}, {"n"}};
  section.rows = [](const RowSink& sink) {
    sink({"実験", "1"});
    sink({"abcd", "2"});
  };
  std::ostringstream out;
  const Study unused;
  ASSERT_TRUE(MakePrinter(OutputFormat::kTable, out, Terminal())->Print({unused, {section}}).ok());
  EXPECT_EQ(out.str(), "NAME  N\n実験  1\nabcd  2\n");
}

TEST(Text, AxesStandInAnOrderThatReadsWell) {
  google::protobuf::Struct key;
  for (const char* name : {"ranks", "precision", "augment", "engine"})
    (*key.mutable_fields())[name].set_string_value("x");
  EXPECT_THAT(AxesOf({&key}), ElementsAre("engine", "precision", "augment", "ranks"));
}

TEST(Selectors, StudiesHaveNumbersNamesAndLast) {
  EXPECT_EQ(StudyName("7").value(), "studies/7");
  EXPECT_EQ(StudyName("last").value(), "studies/last");
  EXPECT_EQ(StudyName("studies/7").value(), "studies/7");
  EXPECT_EQ(StudyName("resnet20-strong").value(), "studies/resnet20-strong");
  for (const char* bad : {"", "studies/", "a/b", "1,2", "a b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(StudyName(bad).status())) << bad;
  }
}

TEST(Selectors, RangesExpandInOrderAndEachOnce) {
  EXPECT_THAT(StudyNames("1-3,5,2").value(), ElementsAre("studies/1", "studies/2", "studies/3", "studies/5"));
  EXPECT_THAT(StudyNames("a-1, b").value(), ElementsAre("studies/a-1", "studies/b"));
  EXPECT_THAT(RunNames("12-13,studies/1/runs/4").value(),
              ElementsAre("runs/12", "runs/13", "studies/1/runs/4"));
  for (const char* bad : {"3-1", "1-99999999", "1,,2", "1-99999999999999999999"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(StudyNames(bad).status())) << bad;
  }
  for (const char* bad : {"last", "runs/x", "studies/1/runs/", "1/2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RunName(bad).status())) << bad;
  }
}

class Progress : public ::testing::Test {
 protected:
  Progress() {
    Study* study = look_.mutable_study();
    study->set_name("studies/7");
    study->set_display_name("resnet20-strong");
    study->set_state(Study::RUNNING);
    study->mutable_counts()->set_queued(25);
    study->mutable_counts()->set_running(5);
    study->mutable_counts()->set_succeeded(9);
    study->mutable_counts()->set_failed(1);
    for (int i = 0; i < 5; ++i) {
      auto* attempt = look_.add_running();
      attempt->set_run("studies/7/runs/" + std::to_string(13 + i));
      (*attempt->mutable_key()->mutable_fields())["engine"].set_string_value("native/ddp");
      (*attempt->mutable_key()->mutable_fields())["ranks"].set_number_value(4);
      attempt->set_attempt(1);
      attempt->set_step(100);
      attempt->set_total_steps(200);
      attempt->set_train_loss(1.873);
    }
  }
  WatchStudyResponse look_;
};

TEST_F(Progress, CountsWhatLiveAttemptsHaveDone) { EXPECT_DOUBLE_EQ(DoneShare(look_), (10 + 5 * 0.5) / 40); }

TEST_F(Progress, TheDisplayNeverExceedsTheTerminal) {
  for (const int width : {20, 40, 80, 200}) {
    for (const int height : {6, 8, 24}) {
      const auto lines = ProgressDisplay(look_, absl::Seconds(83), absl::Seconds(120),
                                         Terminal{true, false, true, width, height});
      EXPECT_LT(lines.size(), static_cast<size_t>(height));
      EXPECT_THAT(lines,
                  Each(Truly([width](const std::string& line) { return DisplayWidth(line) < width; })));
    }
  }
}

TEST_F(Progress, TheDisplayShowsStepsLossAndTheTimeLeft) {
  const auto lines =
      ProgressDisplay(look_, absl::Seconds(83), absl::Seconds(120), Terminal{true, false, false, 120, 24});
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(lines[0], "studies/7 resnet20-strong  running  1m23s  about 2m00s left");
  EXPECT_EQ(lines[1], "#########..................... 10/40 runs  5 running  25 queued  1 failed");
  EXPECT_EQ(lines[2], "  run 13    native/ddp ranks=4  repeat 0  #####..... 100/200  loss 1.873");
}

TEST_F(Progress, LinesOfRunsKeepThroughputAndTimeLeftOnNarrowTerminals) {
  RunPaces paces([](const auto&) { return 650; });
  WatchStudyResponse before = look_;
  for (auto& attempt : *before.mutable_running()) attempt.set_step(50);
  const absl::Time start = absl::FromUnixSeconds(1'795'000'000);
  paces.Add(before, start);
  paces.Add(look_, start + absl::Seconds(40));
  const auto line = [&](int width, bool unicode = false) {
    return ProgressDisplay(look_, absl::Seconds(83), std::nullopt, Terminal{true, false, unicode, width, 24},
                           paces)[2];
  };
  EXPECT_EQ(line(102),
            "  run 13    native/ddp ranks=4  repeat 0  #####..... 100/200  loss 1.873  "
            "812.5 samples/s, 1m20s left");
  EXPECT_EQ(line(80), "  run 13    nati~ranks=4  ##.. 100/200  loss 1.873  812.5 samples/s, 1m20s left");
  EXPECT_EQ(line(80, true),
            "  run 13    nati…ranks=4  ██░░ 100/200  loss 1.873  812.5 samples/s, 1m20s left");
  for (int width = 57; width < 110; ++width) {
    const std::string shown = line(width, true);
    EXPECT_LT(DisplayWidth(shown), width);
    EXPECT_THAT(shown, EndsWith("  812.5 samples/s, 1m20s left")) << width;
  }
}

TEST_F(Progress, AttemptsWithoutRoomAreCounted) {
  const auto lines =
      ProgressDisplay(look_, absl::Seconds(1), std::nullopt, Terminal{true, false, false, 120, 8});
  EXPECT_EQ(lines.back(), "  and 2 more");
}

TEST(InterruptDeathTest, EndsWith130AndSaysWhatGoesOn) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto interrupted = [](int signal) {
    InstallInterruptHandler();
    SetInterruptWords("the study goes on");
    std::raise(signal);
  };
  EXPECT_EXIT(interrupted(SIGINT), ::testing::ExitedWithCode(130), "the study goes on");
  EXPECT_EXIT(interrupted(SIGTERM), ::testing::ExitedWithCode(143), "the study goes on");
}

TEST(InterruptDeathTest, EndsWith130IfNobodyCanReadTheMessage) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto interrupted = [] {
    InstallInterruptHandler();
    SetInterruptWords("the study goes on");
    close(STDERR_FILENO);
    std::raise(SIGINT);
  };
  EXPECT_EXIT(interrupted(), ::testing::ExitedWithCode(130), "");
}

TEST(PaceEstimate, ExtrapolatesFromWhatItSaw) {
  PaceEstimate pace;
  const absl::Time start = absl::UnixEpoch();
  pace.Add(0.5, start);  // half of the work was done before the first message
  EXPECT_FALSE(pace.Left());
  pace.Add(0.6, start + absl::Seconds(1));
  EXPECT_FALSE(pace.Left());  // the interval is too short for an estimate
  pace.Add(0.6, start + absl::Seconds(10));
  ASSERT_TRUE(pace.Left());
  EXPECT_NEAR(absl::ToDoubleSeconds(*pace.Left()), 40, 1e-6);
}

}  // namespace
}  // namespace scalelab::client
