#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/output/text.h"
#include "client/plots/curve_view.h"
#include "client/plots/svg_plot.h"
#include "client/plots/terminal_plot.h"
#include "tests/unit/client/client_fixture.h"
#include "tests/unit/client/golden.h"
#include "tests/unit/client/sample_curve.h"

namespace scalelab::client {
namespace {

using scalelab::v1::GetCurveResponse;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const Terminal kPlain{false, false, true, 80, 24};

TEST(TerminalPlotTest, LooksAsItDid) { ExpectGolden("curve_plot.txt", TerminalPlot(SampleCurve(), kPlain)); }

TEST(TerminalPlotTest, IsAsciiWithoutUtf8) {
  const std::string plot = TerminalPlot(SampleCurve(), Terminal{false, false, false, 80, 24});
  ExpectGolden("curve_plot_ascii.txt", plot);
  EXPECT_TRUE(std::all_of(plot.begin(), plot.end(), [](char c) { return c >= 0; }));
}

TEST(TerminalPlotTest, FitsTheTerminal) {
  for (const int width : {40, 60, 80, 300}) {
    std::istringstream lines(TerminalPlot(SampleCurve(), Terminal{true, false, true, width, 24}));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(DisplayWidth(line), std::min(width, 100)) << line;
    }
  }
}

TEST(TerminalPlotTest, ColoursOnlyWhereThereAreColours) {
  EXPECT_THAT(TerminalPlot(SampleCurve(), Terminal{true, true, true, 80, 24}), HasSubstr("\033[34m●\033[0m"));
  EXPECT_THAT(TerminalPlot(SampleCurve(), kPlain), Not(HasSubstr("\033")));
}

TEST(TerminalPlotTest, NothingToDrawIsNothing) {
  EXPECT_EQ(TerminalPlot(GetCurveResponse(), kPlain), "");
  GetCurveResponse curve = SampleCurve();
  for (auto& series : *curve.mutable_series()) {
    for (auto& point : *series.mutable_points()) {
      const int ranks = point.ranks();
      point.Clear();
      point.set_ranks(ranks);
    }
  }
  EXPECT_EQ(TerminalPlot(curve, kPlain), "");
}

TEST(CurveView, AnEngineThatTrainsDifferentlyIsMarkedInTheLegend) {
  GetCurveResponse curve = SampleCurve();
  const std::string label = SeriesLabels(curve)[1];
  EXPECT_THAT(SvgPlot(curve), Not(HasSubstr("trains differently")));
  curve.mutable_series(1)->mutable_points(0)->mutable_training_difference()->set_message(
      "trains differently ...");
  EXPECT_THAT(SvgPlot(curve), HasSubstr(label + " (trains differently)"));
  EXPECT_THAT(TerminalPlot(curve, kPlain), HasSubstr(label + " (trains differently)"));
}

TEST(CurveView, LabelsNameOnlyWhatDiffers) {
  GetCurveResponse curve = SampleCurve();
  EXPECT_THAT(SeriesLabels(curve),
              ElementsAre("native/ddp fp32", "native/horovod fp32", "native/ddp amp-bf16"));
  curve.mutable_series()->RemoveLast();
  EXPECT_THAT(SeriesLabels(curve), ElementsAre("native/ddp", "native/horovod"));
  *curve.mutable_series(1) = curve.series(0);
  curve.mutable_series(1)->set_fingerprint("0f0f0f0f0f");
  EXPECT_THAT(SeriesLabels(curve), ElementsAre("resnet20-strong [a1b2c3d]", "resnet20-strong [0f0f0f0]"));
  curve.mutable_series()->RemoveLast();
  EXPECT_THAT(SeriesLabels(curve), ElementsAre("native/ddp fp32"));
}

TEST(CurveView, OfNotesThatDifferInNumbersOnlyThreeAreShown) {
  GetCurveResponse curve = SampleCurve();
  for (auto& series : *curve.mutable_series()) {
    series.clear_notes();
    for (auto& point : *series.mutable_points()) point.clear_notes();
  }
  for (int i = 1; i <= 5; ++i) curve.mutable_series(0)->add_notes(absl::StrCat("repeat ", i, " is slower"));
  curve.mutable_series(1)->add_notes("no base case");
  EXPECT_THAT(CurveNotes(curve),
              ElementsAre(HasSubstr(": repeat 1 is slower"), HasSubstr(": repeat 2 is slower"),
                          HasSubstr(": repeat 3 is slower; and 2 more notes of this kind, see -o json"),
                          HasSubstr(": no base case")));
}

TEST(CurveView, NotesThatBeginWithANumberAreOfDifferentKinds) {
  GetCurveResponse curve = SampleCurve();
  curve.mutable_series(1)->clear_notes();
  auto* point = curve.mutable_series(1)->mutable_points(3);
  for (const char* note : {"2 runs were disturbed", "1 run reported a throughput", "3 runs were made later"})
    point->add_notes(note);
  EXPECT_THAT(CurveNotes(curve),
              ElementsAre(HasSubstr(": 1 run succeeded only after"), EndsWith(": 2 runs were disturbed"),
                          EndsWith(": 1 run reported a throughput"), EndsWith(": 3 runs were made later")));
}

TEST(CurveView, PicturesCountTheValuesAndTheRepeatsThatTheStudyAsksFor) {
  const std::string picture = SvgPlot(SampleCurveWithFactors());
  EXPECT_THAT(
      picture,
      AllOf(HasSubstr("native/horovod fp32, 8 ranks: 4.400, n=1/5<"),
            HasSubstr("native/ddp amp-bf16, 8 ranks: out of memory, n=0/5<"),
            HasSubstr("native/ddp fp32, 4 ranks: load imbalance 4.0% of 75.00 ms, n=5/5<"),
            HasSubstr(">values used / repeats asked for: 5/5; 0/5 at native/ddp amp-bf16, 8 ranks; 1/5 "
                      "at native/horovod fp32, 8 ranks<")));
  GetCurveResponse curve = SampleCurve();
  for (auto& series : *curve.mutable_series()) {
    for (auto& point : *series.mutable_points()) point.set_n(point.ranks() < 4 ? 5 : 3);
  }
  curve.mutable_series(0)->mutable_points(2)->set_state(scalelab::v1::CurvePoint::PENDING);
  EXPECT_EQ(RepeatsNote(curve), "values used / repeats asked for: 5/5; 3/5 at 5 places");
  EXPECT_EQ(RepeatsNote(GetCurveResponse()), "");
}

TEST(CurveView, WithoutABaseCaseThroughputIsShown) {
  GetCurveResponse curve = SampleCurve();
  EXPECT_EQ(MainQuantity(curve), Quantity::kSpeedup);
  for (auto& series : *curve.mutable_series()) {
    series.set_baseline_ranks(0);
    for (auto& point : *series.mutable_points()) {
      point.clear_speedup();
      point.clear_efficiency();
    }
  }
  EXPECT_EQ(MainQuantity(curve), Quantity::kThroughput);
  EXPECT_THAT(TerminalPlot(curve, kPlain),
              AllOf(HasSubstr("throughput (samples/s)"), Not(HasSubstr("ideal"))));
  EXPECT_THAT(SvgPlot(curve), AllOf(HasSubstr("throughput (samples/s)"), Not(HasSubstr("efficiency"))));
}

TEST(CurveView, ScalesCoverEveryPointAndInterval) {
  for (const Quantity quantity : {Quantity::kThroughput, Quantity::kSpeedup, Quantity::kEfficiency}) {
    const auto series = SeriesOf(SampleCurve(), quantity);
    const Scale scale = ValueScale(series, quantity);
    for (const auto& s : series) {
      for (const auto& p : s.points) {
        EXPECT_GE(scale(p.low.value_or(p.value)), 0);
        EXPECT_LE(scale(p.high.value_or(p.value)), 1);
      }
    }
    EXPECT_GE(scale.ticks.size(), 3U);
    for (const double tick : scale.ticks) EXPECT_TRUE(scale(tick) >= 0 && scale(tick) <= 1) << tick;
  }
}

// Python's XML parser checks that the document is well-formed.
void ExpectWellFormed(const std::string& xml, const std::string& dir) {
  const std::string path = dir + "/check.svg";
  std::ofstream(path, std::ios::binary) << xml;
  EXPECT_EQ(
      std::system(
          ("python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' " + path).c_str()),
      0)
      << xml;
}

class CurveCommand : public ClientTest {
 protected:
  void SetUp() override {
    Start();
    server_.curve = SampleCurve();
  }
  // Adds study 7 and returns its specification.
  scalelab::v1::StudySpec& AddStudyWithGpus(int gpus_per_rank) {
    server_.studies.push_back(MakeStudy(7, "resnet20-strong", scalelab::v1::Study::SUCCEEDED, 0, 0, 20));
    scalelab::v1::StudySpec& spec = *server_.studies.back().mutable_spec();
    spec.mutable_resources()->set_gpus_per_rank(gpus_per_rank);
    return spec;
  }
};

TEST_F(CurveCommand, SvgLooksAsItDid) { ExpectDocumented("example-curve.svg", SvgPlot(SampleCurve())); }

TEST_F(CurveCommand, SvgIsWellFormedWhateverNamesContain) {
  ExpectWellFormed(SvgPlot(SampleCurve()), dir_);
  GetCurveResponse curve = SampleCurve();
  curve.set_display_name("<script>&\"quotes\" \x01 größer");
  (*curve.mutable_series(0)->mutable_key()->mutable_fields())["engine"].set_string_value("</svg>&amp;");
  ExpectWellFormed(SvgPlot(curve), dir_);
  EXPECT_THAT(SvgPlot(curve), Not(HasSubstr("<script>")));
  ExpectWellFormed(SvgPlot(GetCurveResponse()), dir_);
}

TEST_F(CurveCommand, SvgNamesTheBaseCaseInAbsoluteUnits) {
  EXPECT_THAT(SvgPlot(SampleCurve()),
              AllOf(HasSubstr("Strong scaling, base cases: 799.8 to 1350 samples/s on 1 rank"),
                    HasSubstr("base case 812.4 samples/s on 1 rank")));
}

TEST_F(CurveCommand, TableLooksAsItDid) {
  const Outcome curve = Run({"curve", "7"});
  EXPECT_THAT(curve, Exits(ExitCode::kOk));
  ExpectGolden("curve_table.txt", curve.out);
}

TEST_F(CurveCommand, WhatCommunicationCostsIsShownWhereItWasMeasured) {
  EXPECT_THAT(Run({"curve", "7", "-o", "csv"}).out, Not(HasSubstr("communication")));
  server_.curve = SampleCurveWithCommunication();
  ExpectGolden("curve_communication.txt", Run({"curve", "7"}).out);
  EXPECT_THAT(Run({"curve", "7", "-o", "csv"}).out,
              AllOf(HasSubstr(",comm_share_high,communication_exposed_mean,communication_exposed_median,"),
                    HasSubstr(",communication_hidden_high,peak_memory_mean,")));
  const auto json = nlohmann::json::parse(Run({"curve", "7", "-o", "json"}).out);
  const auto& points = json["series"][0]["points"];
  EXPECT_FALSE(points[0].contains("communication"));
  EXPECT_DOUBLE_EQ(points[1]["communication"]["total"]["mean"], 0.0168);
  EXPECT_FALSE(points[3]["communication"].contains("hidden"));
}

TEST_F(CurveCommand, SeriesOfOneKeyFromDifferentHardwareAreToldApart) {
  EXPECT_THAT(Run({"curve", "7"}).out, Not(HasSubstr("a1b2c3d")));
  *server_.curve.mutable_series(1) = server_.curve.series(0);
  server_.curve.mutable_series(1)->set_fingerprint("0f0f0f0f0f");
  EXPECT_THAT(Run({"curve", "7"}).out,
              AllOf(HasSubstr("MADE ON"), HasSubstr("a1b2c3d"), HasSubstr("0f0f0f0")));
}

TEST_F(CurveCommand, JsonIsTheServersAnswerWithProtoNames) {
  const auto json = nlohmann::json::parse(Run({"curve", "7", "-o", "json"}).out);
  ASSERT_EQ(json["series"].size(), 3U);
  const auto& point = json["series"][0]["points"][1];
  EXPECT_EQ(json["series"][0]["key"]["engine"], "native/ddp");
  EXPECT_EQ(point["ranks"], 2);
  EXPECT_EQ(point["n"], 5);
  EXPECT_EQ(point["state"], "OK");
  EXPECT_EQ(point["failed"], 0);
  EXPECT_GT(point["speedup"]["high"], point["speedup"]["mean"]);
  // One repeat has no interval, so the output must not contain one.
  EXPECT_FALSE(json["series"][1]["points"][3]["speedup"].contains("low"));
  // The JSON parses back to the message that the server sent.
  GetCurveResponse back;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json.dump(), &back).ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(back, SampleCurve()));
}

TEST_F(CurveCommand, CsvHasEveryStatisticInAColumnOfItsOwn) {
  std::istringstream csv(Run({"curve", "7", "-o", "csv"}).out);
  std::string header, line;
  std::getline(csv, header);
  EXPECT_THAT(header,
              StartsWith("engine,precision,ranks,n,throughput_mean,throughput_median,throughput_stddev,"
                         "throughput_low,throughput_high,speedup_mean"));
  const auto columns = std::count(header.begin(), header.end(), ',');
  int lines = 0;
  for (; std::getline(csv, line); ++lines)
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), columns) << line;
  EXPECT_EQ(lines, 12);
}

TEST_F(CurveCommand, AnAxisThatCsvShowsAnywayHasOneColumn) {
  for (auto& series : *server_.curve.mutable_series())
    (*series.mutable_key()->mutable_fields())["global_batch"].set_number_value(256);
  const std::string csv = Run({"curve", "7", "-o", "csv"}).out;
  const std::vector<std::string> columns = absl::StrSplit(csv.substr(0, csv.find('\n')), ',');
  EXPECT_EQ(std::count(columns.begin(), columns.end(), "global_batch"), 1);
  EXPECT_THAT(Run({"curve", "7"}).out, HasSubstr("GLOBAL_BATCH"));
}

TEST_F(CurveCommand, NotesAreInTheTableThePictureAndTheCsv) {
  auto* series = server_.curve.mutable_series(0);
  series->set_listed_order(true);
  series->mutable_points(1)->add_notes("outlier: repeat 3 is 30% slower");
  series->mutable_points(2)->add_notes("outlier: repeat 3 is 30% slower");
  series->mutable_fits(0)->mutable_lack_of_fit()->set_rejected(true);
  EXPECT_THAT(
      Run({"curve", "7"}).out,
      AllOf(HasSubstr("native/ddp fp32, 2, 4 ranks: outlier: repeat 3 is 30% slower"),
            HasSubstr("does not describe these points"), HasSubstr("1/5"), HasSubstr("1.94 [1.86, 2.02]*"),
            HasSubstr("0.97 [0.93, 1.01]*"), Not(HasSubstr("1.00*")), Not(HasSubstr("1.85 [1.78, 1.93]*")),
            HasSubstr("\n*:            measured with order: listed"),
            HasSubstr("native/ddp fp32: differences below 3.2% could not be seen")));
  EXPECT_THAT(Run({"curve", "7", "-o", "csv"}).out,
              AllOf(HasSubstr(",listed_order,noise_floor,notes"), HasSubstr("true,0.032,outlier: repeat 3")));
  EXPECT_THAT(SvgPlot(server_.curve), AllOf(HasSubstr("note: native/ddp fp32, 2, 4 ranks: outlier"),
                                            HasSubstr("native/ddp fp32 (listed order)")));
  EXPECT_THAT(TerminalPlot(server_.curve, kPlain), HasSubstr("native/ddp fp32 (listed order)"));
  EXPECT_EQ(
      nlohmann::json::parse(Run({"curve", "7", "-o", "json"}).out)["series"][0]["points"][1]["notes"][0],
      "outlier: repeat 3 is 30% slower");
}

TEST_F(CurveCommand, EveryHonestyNoteIsInEveryOutput) {
  server_.curve = SampleCurveWithFactors();
  for (auto& series : *server_.curve.mutable_series()) {
    series.clear_notes();
    for (auto& point : *series.mutable_points()) point.clear_notes();
  }
  const std::vector<std::string> notes = {
      "1 run without a usable throughput: run/throughput of rank 0 is not a number",
      "1 run succeeded only after a failed attempt",
      "outlier: repeat 3 is 30% slower than the other repeats suggest; it is used",
      "efficiency above 1: the smaller world size may lack memory or cache, or the base case is disturbed",
      "shares only 2 of its 4 repeats with the base case",
      "repeats ran on different nodes",
      "1 run reported a throughput that its steps do not have: repeat 2 reported 900 samples/s, "
      "but its median step of 0.5 s makes 512 samples/s"};
  const std::string listed =
      "the runs were made in the order of the study file, so speedups include every change of the machine "
      "over time; use order: randomized";
  auto* series = server_.curve.mutable_series(0);
  series->add_notes(listed);
  for (const std::string& note : notes) series->mutable_points(2)->add_notes(note);
  server_.comparison.add_studies("studies/7");
  server_.advice.set_study("studies/7");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"curve", "7"},
                                             {"curve", "7", "--factors"},
                                             {"curve", "7", "--compare", "engine"},
                                             {"curve", "7", "8"},
                                             {"advise", "7"}}) {
    const Outcome outcome = Run(command);
    EXPECT_THAT(outcome, Exits(ExitCode::kOk));
    EXPECT_THAT(outcome.out, HasSubstr("native/ddp fp32: " + listed + "\n"));
    for (const std::string& note : notes)
      EXPECT_THAT(outcome.out, HasSubstr("native/ddp fp32, 4 ranks: " + note + "\n"));
  }
  EXPECT_EQ(server_.curve_asked.study(), "studies/7");
  const std::string csv = Run({"curve", "7", "-o", "csv"}).out, picture = SvgPlot(server_.curve);
  EXPECT_THAT(csv, HasSubstr(listed));
  for (const std::string& note : notes) {
    EXPECT_THAT(csv, HasSubstr(note));
    // A picture wraps notes.
    EXPECT_THAT(picture, HasSubstr("note: native/ddp fp32, 4 ranks: " + note.substr(0, 30)));
  }
  EXPECT_THAT(picture, HasSubstr("note: native/ddp fp32: " + listed.substr(0, 30)));
  const auto json = nlohmann::json::parse(Run({"curve", "7", "-o", "json"}).out)["series"][0];
  EXPECT_EQ(json["notes"].get<std::vector<std::string>>(), std::vector<std::string>{listed});
  EXPECT_EQ(json["points"][2]["notes"].get<std::vector<std::string>>(), notes);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"curve", "7", "--compare", "engine", "-o", "json"},
                                             {"study", "compare", "7", "8", "-o", "json"},
                                             {"advise", "7", "-o", "json"}}) {
    const auto answer = nlohmann::json::parse(Run(command).out);
    ASSERT_TRUE(answer.contains("measured")) << command[0];
    const auto& measured = answer["measured"][0];
    EXPECT_EQ(measured["study"], "studies/7");
    EXPECT_EQ(measured["key"]["engine"], "native/ddp");
    EXPECT_EQ(measured["notes"].get<std::vector<std::string>>(), std::vector<std::string>{listed});
    EXPECT_EQ(measured["points"][2]["ranks"], 4);
    EXPECT_EQ(measured["points"][2]["n"], 5);
    EXPECT_EQ(measured["points"][2]["asked"], 5);
    EXPECT_EQ(measured["points"][2]["notes"].get<std::vector<std::string>>(), notes);
  }
}

TEST_F(CurveCommand, ComparesEngines) {
  auto* group = server_.comparison.add_groups();
  group->set_ranks(8);
  group->set_noise_floor(0.021);
  auto* pair = group->add_pairs();
  pair->set_first("native/ddp");
  pair->set_second("native/horovod");
  pair->set_n(5);
  pair->set_verdict(scalelab::v1::ComparedPair::EQUIVALENT);
  SetEstimate(pair->mutable_effect(), 0.004, 0.009);
  const Outcome compared = Run({"curve", "7", "--compare", "engine", "--equivalent", "2%", "--with", "8"});
  EXPECT_THAT(compared, Exits(ExitCode::kOk));
  EXPECT_THAT(compared.out,
              AllOf(HasSubstr("native/horovod"), HasSubstr("+0.4 [-0.5, +1.3]"), HasSubstr("equivalent"),
                    HasSubstr("differences below 2.1% could not be seen")));
  EXPECT_EQ(server_.comparison_asked.axis(), "engine");
  EXPECT_DOUBLE_EQ(server_.comparison_asked.equivalent(), 0.02);
  EXPECT_EQ(server_.comparison_asked.studies_size(), 2);
  const Outcome wrong = Run({"curve", "7", "--compare", "engine", "--equivalent", "0%"});
  EXPECT_THAT(wrong.err, HasSubstr("--equivalent 0% is not a share above 0"));
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--file", dir_ + "/a.pdf"}, {"--svg", dir_ + "/a.svg"}, {"--plot"}}) {
    std::vector<std::string> words = {"curve", "7", "--compare", "engine"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome figure = Run(words);
    EXPECT_THAT(figure, Exits(ExitCode::kUsage));
    EXPECT_THAT(figure.err, HasSubstr("--compare prints a table and has no figure"));
  }
}

TEST_F(CurveCommand, AnIntervalThatEndsAtZeroIsShownWithBothEnds) {
  auto* throughput = server_.curve.mutable_series(0)->mutable_points(0)->mutable_throughput();
  throughput->set_mean(125);
  throughput->set_low(0);
  throughput->set_high(442.66);
  SetEstimate(server_.curve.mutable_series(0)->mutable_points(1)->mutable_throughput(), 99.9, 0.3);
  const std::string table = Run({"curve", "7", "--no-plot"}).out;
  EXPECT_THAT(table, AllOf(HasSubstr("125.0 [0, 442.7]"), HasSubstr("99.90 ± 0.30")));
  EXPECT_THAT(table, Not(HasSubstr("125.0 ±")));
}

TEST_F(CurveCommand, AdvisesOnWorldSizes) {
  server_.advice.set_study("studies/7");
  auto* advice = server_.advice.add_advice();
  advice->set_recommended(2);
  advice->add_candidates(2);
  advice->set_text("Use 2 ranks.");
  auto* size = advice->add_sizes();
  size->set_ranks(2);
  size->set_pays(true);
  SetEstimate(size->mutable_hours(), 5.5, 0.1);
  SetEstimate(size->mutable_cost(), 22, 0.4);
  SetEstimate(size->mutable_gain(), 0.8, 0.05);
  AddStudyWithGpus(1);
  const Outcome advised = Run(
      {"advise", "7", "--min-gain", "40%", "--price", "2.5/gpu-hour", "--deadline", "12h", "--epochs", "90"});
  EXPECT_THAT(advised, Exits(ExitCode::kOk));
  EXPECT_THAT(advised.out,
              AllOf(HasSubstr("use this"), HasSubstr("Use 2 ranks."), HasSubstr("80.00 [75.00, 85.00]")));
  EXPECT_DOUBLE_EQ(server_.advice_asked.min_gain(), 0.4);
  EXPECT_DOUBLE_EQ(server_.advice_asked.rank_hour_price(), 2.5);
  EXPECT_DOUBLE_EQ(server_.advice_asked.deadline_hours(), 12);
  EXPECT_DOUBLE_EQ(server_.advice_asked.epochs(), 90);
  EXPECT_THAT(Run({"advise", "7", "--price", "cheap"}).err, HasSubstr("--price cheap is not a price"));
  EXPECT_THAT(Run({"advise", "7", "--deadline", "soon"}).err, HasSubstr("--deadline soon is not a time"));
}

TEST_F(CurveCommand, ThePriceOfAGpuHourIsMultipliedByTheGpusOfARank) {
  scalelab::v1::StudySpec& spec = AddStudyWithGpus(4);
  const auto price = [this](const std::string& text) {
    EXPECT_THAT(Run({"advise", "last", "--price", text}), Exits(ExitCode::kOk));
    return server_.advice_asked.rank_hour_price();
  };
  EXPECT_DOUBLE_EQ(price("2.5/gpu-hour"), 10);
  EXPECT_EQ(server_.advice_asked.study(), "studies/7");
  EXPECT_DOUBLE_EQ(price("2.5/rank-hour"), 2.5);
  EXPECT_DOUBLE_EQ(price("2.5"), 2.5);
  spec.mutable_resources()->clear_gpus_per_rank();
  auto& fixed = (*spec.mutable_fixed()->mutable_fields())["gpus_per_rank"];
  fixed.set_number_value(2);
  EXPECT_DOUBLE_EQ(price("2.5/gpu-hour"), 5);
  fixed.set_number_value(0);
  const Outcome none = Run({"advise", "7", "--price", "2.5/gpu-hour"});
  EXPECT_THAT(none, Exits(ExitCode::kUsage));
  EXPECT_THAT(none.err, HasSubstr("have no GPUs (gpus_per_rank: 0); use /rank-hour"));
  spec.clear_fixed();
  for (const bool zipped : {false, true}) {
    spec.clear_matrix();
    auto* axis = zipped ? spec.add_zip()->add_axes() : spec.add_matrix();
    axis->set_key("gpus_per_rank");
    for (const double gpus : {1.0, 2.0}) axis->add_values()->set_number_value(gpus);
    EXPECT_THAT(Run({"advise", "7", "--price", "2.5/gpu-hour"}).err,
                HasSubstr("different numbers of GPUs (gpus_per_rank: 1, 2); use /rank-hour"));
  }
}

TEST_F(CurveCommand, ShowsHowManyRunsRanAtTheSameTime) {
  auto* point = server_.curve.mutable_series(0)->mutable_points(0);
  point->set_concurrent_attempts(2.25);
  point->set_most_concurrent_attempts(4);
  EXPECT_THAT(Run({"curve", "7", "-o", "csv"}).out,
              AllOf(HasSubstr(",concurrent_attempts,most_concurrent_attempts,failed,asked,retried,"),
                    HasSubstr(",ok,2.25,4,0,5,0,"), HasSubstr(",ok,,,0,5,0,")));
  EXPECT_THAT(Run({"curve", "7", "-o", "wide"}).out, AllOf(HasSubstr("AT ONCE"), HasSubstr(" 2.2 ")));
  EXPECT_THAT(Run({"curve", "7"}).out, Not(HasSubstr("AT ONCE")));
}

TEST_F(CurveCommand, ConditionsSelectPoints) {
  const auto rows = [this](const std::string& where) {
    std::string all;
    const auto json = nlohmann::json::parse(Run({"curve", "--where", where, "7", "-o", "json"}).out);
    for (const auto& series : json["series"]) {
      for (const auto& point : series["points"])
        absl::StrAppend(&all, series["key"]["precision"].get<std::string>(), " ", point["ranks"].get<int>(),
                        ", ");
    }
    return all;
  };
  EXPECT_EQ(rows("engine=*/ddp and ranks>2"), "fp32 4, fp32 8, amp-bf16 4, amp-bf16 8, ");
  EXPECT_EQ(rows("precision!=fp32 and ranks==1"), "amp-bf16 1, ");
  EXPECT_EQ(Run({"curve", "7", "--where", "ranks>100", "--no-plot"}).out.substr(0, 15), "no such points\n");
  EXPECT_THAT(Run({"curve", "7", "--where", "colour=red"}).err,
              HasSubstr("'colour' is no axis of this curve; known: engine, precision, ranks"));
}

TEST_F(CurveCommand, RowsAreSortedAndLimited) {
  const auto rows = [this](std::vector<std::string> more) {
    more.insert(more.begin(), {"curve", "7", "--no-plot"});
    const std::string out = Run(more).out;
    std::string all;
    for (size_t at = out.find('\n') + 1; at < out.size(); at = out.find('\n', at) + 1) {
      size_t end = at;
      for (int column = 0; column < 3; ++column) end = out.find(',', end) + 1;
      all += out.substr(at, end - at - 1) + "; ";
    }
    return all;
  };
  EXPECT_EQ(rows({"--sort", "-throughput", "--limit", "3", "-o", "csv"}),
            "native/ddp,fp32,8; native/horovod,fp32,8; native/ddp,amp-bf16,4; ");
  EXPECT_EQ(rows({"--sort", "precision", "--limit", "1", "-o", "csv"}), "native/ddp,amp-bf16,1; ");
  EXPECT_EQ(rows({"--sort", "-ranks", "--where", "engine=*/horovod", "--format", "csv"}),
            "native/horovod,fp32,8; native/horovod,fp32,4; native/horovod,fp32,2; native/horovod,fp32,1; ");
  EXPECT_EQ(rows({"--limit", "1", "-o", "csv"}), "native/ddp,fp32,1; ");
  // A point without a result comes last.
  EXPECT_THAT(rows({"--sort", "-throughput", "-o", "csv"}), EndsWith("; native/ddp,amp-bf16,8; "));
  EXPECT_THAT(Run({"curve", "7", "--limit", "1", "--no-plot"}).out, Not(HasSubstr("native/horovod  fp32  ")));
  EXPECT_THAT(
      Run({"curve", "7", "--sort", "colour"}).err,
      HasSubstr("--sort: 'colour' is no axis of this curve; known: engine, precision, ranks, throughput"));
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"curve", "7", "--limit", "1", "-o", "json"},
                                             {"curve", "7", "--sort", "ranks", "--format", "svg"},
                                             {"curve", "7", "8", "--limit", "1"},
                                             {"curve", "7", "--factors", "--limit", "1"},
                                             {"curve", "7", "--compare", "engine", "--sort", "ranks"}})
    EXPECT_THAT(Run(wrong), Exits(ExitCode::kUsage));
}

TEST_F(CurveCommand, ATerminalShowsTheFirstRowsOfALargeCurve) {
  auto& points = *server_.curve.mutable_series(0)->mutable_points();
  while (points.size() < 60) *points.Add() = points[0];
  const int rows = 60 + 4 + 4;
  const Terminal terminal{true, false, true, 120, 24};
  const std::string out = Run({"curve", "7", "--no-plot"}, terminal).out;
  EXPECT_THAT(out, HasSubstr(absl::StrCat(
                       "\nand ", rows - 50,
                       " more rows: --where, --sort and --limit select rows, -o wide shows all\n")));
  EXPECT_THAT(out, Not(HasSubstr("native/horovod  fp32")));
  for (const std::string& all : {Run({"curve", "7"}).out, Run({"curve", "7", "-o", "wide"}, terminal).out})
    EXPECT_THAT(all, AllOf(Not(HasSubstr("more rows")), HasSubstr("native/horovod  fp32  ")));
}

TEST_F(CurveCommand, FactorsShowWhyItStops) {
  server_.curve = SampleCurveWithFactors();
  const Outcome table = Run({"curve", "7", "--factors"});
  EXPECT_THAT(table, Exits(ExitCode::kOk));
  EXPECT_TRUE(server_.curve_asked.factors());
  ExpectGolden("curve_factors.txt", table.out);
  EXPECT_THAT(Run({"curve", "7", "--factors", "-o", "csv"}).out,
              AllOf(HasSubstr(",ranks,n,asked,step_seconds,load_balance_mean,load_balance_low,"),
                    HasSubstr(",slowest_node_excess_high")));
  EXPECT_THAT(Run({"curve", "7", "--factors", "--format", "latex"}).out, HasSubstr(" & 5/5 & "));
  EXPECT_THAT(Run({"curve", "7", "--factors", "--format", "latex", "--no-n"}).out, Not(HasSubstr("5/5")));
  const auto json = nlohmann::json::parse(Run({"curve", "7", "--factors", "-o", "json"}).out);
  EXPECT_DOUBLE_EQ(json["series"][0]["points"][2]["factors"]["load_balance"]["mean"], 0.96);
  EXPECT_EQ(json["series"][0]["points"][2]["factors"]["slowest_rank"]["node"], "n7");
  EXPECT_EQ(Run({"curve", "7", "--factors", "--format", "csv"}).out,
            Run({"curve", "7", "--factors", "-o", "csv"}).out);
  EXPECT_NE(Run({"curve", "7", "--factors", "--format", "latex"}).out,
            Run({"curve", "7", "--format", "latex"}).out);
  Run({"curve", "7"});
  EXPECT_FALSE(server_.curve_asked.factors());
  EXPECT_THAT(Run({"curve", "7", "--factors", "--compare", "engine"}), Exits(ExitCode::kUsage));
}

TEST_F(CurveCommand, FactorsNameTheSlowestNodeOfRunsOnOneNodeEach) {
  server_.curve = SampleCurveWithFactors();
  auto& named = *server_.curve.add_node_comparisons();
  named.set_fingerprint("a1b2c3d4e5f6");
  named.set_runs(24);
  named.mutable_slowest()->set_node("n7");
  named.mutable_slowest()->set_compared(4);
  named.mutable_slowest()->set_significant(true);
  SetEstimate(named.mutable_slowest()->mutable_excess(), 0.081, 0.03);
  const std::string slower =
      "n7 is significantly slower than the mean of 4 nodes: a sample takes +8.1 [+5.1, +11.1] % more time "
      "(24 runs "
      "that used one node each)";
  EXPECT_THAT(Run({"curve", "7", "--factors"}).out, AllOf(HasSubstr(slower), Not(HasSubstr("made on"))));
  const auto json = nlohmann::json::parse(Run({"curve", "7", "--factors", "-o", "json"}).out);
  EXPECT_EQ(json["node_comparisons"][0]["slowest"]["node"], "n7");

  named.mutable_slowest()->set_significant(false);
  auto& unknown = *server_.curve.add_node_comparisons();
  unknown.set_fingerprint("ffffffffffff");
  unknown.set_missing("fewer than two nodes executed more than one run");
  EXPECT_THAT(
      Run({"curve", "7", "--factors"}).out,
      AllOf(Not(HasSubstr("is significantly slower than the mean of")),
            HasSubstr("none of 4 nodes is significantly slower than their mean (24 runs that used one node "
                      "each) (made on a1b2c3d)"),
            HasSubstr("the slowest node is not known: fewer than two nodes executed more than one "
                      "run (made on fffffff)")));
}

TEST_F(CurveCommand, ThePictureOfFactorsHasABarForEachPoint) {
  const std::string picture = SvgPlot(SampleCurveWithFactors());
  ExpectWellFormed(picture, dir_);
  ExpectDocumented("example-curve-factors.svg", picture);
  EXPECT_THAT(picture, HasSubstr("native/ddp fp32, 4 ranks: load imbalance 4.0% of 75.00 ms"));
  EXPECT_THAT(SvgPlot(SampleCurve()), Not(HasSubstr("parts of the mean step")));
}

TEST_F(CurveCommand, CountsTheRepeatsThatReachedTheTarget) {
  auto* target = server_.curve.mutable_series(0)->mutable_points(0)->mutable_time_to_target();
  target->set_n(4);
  target->set_reached(2);
  target->set_note("2 of 4 repeats did not reach the target; only one may be left out");
  server_.curve.mutable_series(0)->mutable_points(1)->mutable_time_to_target()->set_seconds(130);
  EXPECT_THAT(Run({"curve", "7"}).out,
              AllOf(HasSubstr("REACHED"), HasSubstr("2/4"), HasSubstr("2m10s"),
                    HasSubstr("native/ddp fp32, 1 rank: 2 of 4 repeats did not reach the target")));
  EXPECT_THAT(Run({"curve", "7", "-o", "csv"}).out,
              HasSubstr(",target_reached,target_repeats,target_seconds,"));
}

TEST_F(CurveCommand, TheConvergenceIsComparedWithAReference) {
  auto& target = *server_.curve.mutable_series(0)->mutable_points(0)->mutable_time_to_target();
  target.set_reference_samples(1000);
  target.set_note("converges faster than the reference studies/9");
  const auto out = Run({"curve", "7", "--factors", "--reference", "9"}).out;
  EXPECT_EQ(server_.curve_asked.reference(), "studies/9");
  EXPECT_THAT(out, HasSubstr("time to target: converges faster than the reference studies/9"));
  const auto json = nlohmann::json::parse(Run({"curve", "7", "--factors", "-o", "json"}).out);
  EXPECT_EQ(server_.curve_asked.reference(), "");
  EXPECT_EQ(json["series"][0]["points"][0]["time_to_target"]["reference_samples"], 1000);
  EXPECT_THAT(Run({"curve", "7", "--reference", "9"}), Exits(ExitCode::kUsage));
}

TEST_F(CurveCommand, PlotsOnATerminalOrWhenAsked) {
  const Terminal terminal{true, false, true, 100, 40};
  EXPECT_THAT(Run({"curve", "7"}, terminal).out, HasSubstr("· ideal"));
  EXPECT_THAT(Run({"curve", "7", "--no-plot"}, terminal).out, Not(HasSubstr("· ideal")));
  EXPECT_THAT(Run({"curve", "7"}).out, Not(HasSubstr("ideal")));
  EXPECT_THAT(Run({"curve", "7", "--plot"}).out, HasSubstr("' ideal"));
  EXPECT_EQ(nlohmann::json::parse(Run({"curve", "7", "-o", "json"}, terminal).out)["scaling"], "strong");
}

TEST_F(CurveCommand, WritesThePictureOrSaysWhyNot) {
  const std::string path = dir_ + "/curve.svg";
  EXPECT_THAT(Run({"curve", "7", "--svg", path}), Exits(ExitCode::kOk));
  std::ifstream file(path);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), SvgPlot(SampleCurve()));
  const Outcome failed = Run({"curve", "7", "--svg", dir_ + "/none/curve.svg"});
  EXPECT_THAT(failed, Exits(ExitCode::kFailure));
  EXPECT_THAT(failed.err, HasSubstr("cannot write"));
  for (const std::string& name : {dir_ + "/curve.pdf", std::string("-")}) {
    const Outcome refused = Run({"curve", "7", "--svg", name});
    EXPECT_THAT(refused, Exits(ExitCode::kUsage));
    EXPECT_THAT(refused.err, HasSubstr("does not end in .svg"));
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/curve.pdf"));
}

TEST_F(CurveCommand, TwoFiguresAreNotWrittenAtOnce) {
  const std::string file = dir_ + "/a.csv", svg = dir_ + "/b.svg";
  for (const char* command : {"curve", "plot"}) {
    const Outcome both = Run({command, "7", "--file", file, "--svg", svg});
    EXPECT_THAT(both, Exits(ExitCode::kUsage));
    EXPECT_THAT(both.err, HasSubstr("--svg " + svg + " has no effect with --file or --format"));
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace scalelab::client
