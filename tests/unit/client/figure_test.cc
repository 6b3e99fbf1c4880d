// Tests of figures: panels, formats, comparisons of studies.
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/commands/reports/comparison.h"
#include "client/figures/curve_figure.h"
#include "client/figures/latex_table.h"
#include "client/plots/line_plot.h"
#include "client/plots/svg_plot.h"
#include "server/command/command.h"
#include "tests/unit/client/client_fixture.h"
#include "tests/unit/client/golden.h"
#include "tests/unit/client/picture_samples.h"
#include "tests/unit/client/sample_comparison.h"
#include "tests/unit/client/sample_curve.h"

namespace scalelab::client {
namespace {

using scalelab::v1::GetCurveResponse;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FigureTest : public ClientTest {
 protected:
  void SetUp() override {
    Start();
    server_.curve = SampleCurve();
    server_.comparison = SampleComparison();
  }
  std::string Path(const std::string& name) { return dir_ + "/" + name; }
};

TEST_F(FigureTest, PanelsAreDrawnInTheOrderOfTheOption) {
  const std::string file = Path("c.svg");
  EXPECT_THAT(
      Run({"curve", "7", "--panels", "throughput,memory,comm,accuracy,speedup,efficiency", "--file", file}),
      Exits(ExitCode::kOk));
  const std::string svg = FileText(file);
  size_t at = 0;
  for (const char* title : {"throughput (samples/s)", "memory of a rank (GiB)", "wait for communication",
                            ">accuracy (%)", ">speedup<", ">efficiency (%)"}) {
    const size_t found = svg.find(title, at);
    EXPECT_NE(found, std::string::npos) << title;
    at = found == std::string::npos ? at : found;
  }
  EXPECT_THAT(Run({"curve", "7", "--panels", "througput", "--file", file}),
              AllOf(Exits(ExitCode::kUsage),
                    ::testing::Field(&Outcome::err, HasSubstr("known: throughput, speedup"))));
  EXPECT_THAT(Run({"curve", "7", "--panels", "speedup"}).err, HasSubstr("--file curve.pdf"));
}

TEST_F(FigureTest, PanelsChooseTheStatisticsOfCsv) {
  EXPECT_THAT(Run({"curve", "7", "--panels", "speedup,memory", "--format", "csv"}).out,
              AllOf(StartsWith("engine,precision,ranks,n,speedup_mean,speedup_median,speedup_stddev,"
                               "speedup_low,speedup_high,peak_memory_mean,"),
                    HasSubstr("\nnative/ddp,fp32,1,5,1,1,,,,1610612736,"), HasSubstr(",state,"),
                    Not(HasSubstr("throughput_")), Not(HasSubstr("comm_share_"))));
}

TEST_F(FigureTest, GoodputIsAPanelWithIntervals) {
  server_.curve = SampleCurveWithFactors();
  // The remaining point has no norms.
  server_.curve.mutable_series(2)->mutable_points()->DeleteSubrange(1, 3);
  const std::string svg = Run({"curve", "7", "--panels", "throughput,goodput", "--format", "svg"}).out;
  EXPECT_TRUE(server_.curve_asked.factors());
  EXPECT_THAT(svg,
              AllOf(HasSubstr(">goodput (samples/s)<"),
                    HasSubstr("native/ddp fp32, 4 ranks: 900.0 [840.0, 960.0], n=5/5<"),
                    HasSubstr("note: native/ddp fp32, 2 ranks; native/horovod fp32, 2 ranks: no goodput: "),
                    HasSubstr("note: native/ddp amp-bf16: no goodput: the runs reported no norms")));
  EXPECT_THAT(svg, Not(HasSubstr("parts of the mean step"))) << "only --factors shows the factors";
  EXPECT_THAT(Run({"curve", "7", "--panels", "goodput", "--format", "latex"}).out,
              AllOf(HasSubstr("& goodput (samples/s) "),
                    HasSubstr("\nnative/ddp fp32 & 4 & 5/5 & 900 {[}840, 960]")));
  EXPECT_THAT(Run({"curve", "7", "--panels", "goodput", "--format", "csv"}).out,
              AllOf(StartsWith("engine,precision,ranks,n,goodput_mean,goodput_median,goodput_stddev,"
                               "goodput_low,goodput_high,"),
                    HasSubstr("\nnative/ddp,fp32,4,5,900,900,40,840,960,")));
  EXPECT_THAT(Run({"curve", "7", "--sort", "-goodput"}).out,
              AllOf(HasSubstr("GOODPUT"), HasSubstr("900.0 [840.0, 960.0]")));
  EXPECT_THAT(Run({"curve", "8", "7", "--panels", "goodput", "--format", "svg"}).out,
              AllOf(HasSubstr(">goodput (samples/s)<"), Not(HasSubstr("parts of the mean step"))));
  EXPECT_THAT(Run({"curve", "7", "--factors", "--panels", "goodput", "--format", "svg"}).out,
              AllOf(HasSubstr(">goodput (samples/s)<"), HasSubstr("parts of the mean step")));
  Run({"curve", "7", "--format", "svg"});
  EXPECT_FALSE(server_.curve_asked.factors());
}

TEST_F(FigureTest, PanelsWithoutAnEffectAreRefused) {
  for (const char* format : {"csv", "latex"}) {
    const Outcome compared = Run({"study", "compare", "8", "7", "--panels", "speedup", "--format", format});
    EXPECT_THAT(compared, Exits(ExitCode::kUsage));
    EXPECT_THAT(compared.err,
                HasSubstr("because a table of a comparison has only throughputs; leave it out"));
    EXPECT_THAT(Run({"curve", "8", "7", "--panels", "speedup", "--format", format}).err,
                HasSubstr("because a table of a comparison has only throughputs; leave it out"));
    EXPECT_THAT(Run({"curve", "7", "--factors", "--panels", "speedup", "--format", format}).err,
                HasSubstr("because a table of --factors has the factors; leave it out"));
  }
  EXPECT_THAT(Run({"study", "compare", "8", "7", "--panels", "speedup"}).err, HasSubstr("--file curve.pdf"));
  EXPECT_THAT(Run({"study", "compare", "8", "7", "--panels", "speedup", "--format", "svg"}),
              Exits(ExitCode::kOk));
}

TEST_F(FigureTest, TitleWidthAndNumbersOfRepeatsAreOptions) {
  const std::string usual = Run({"curve", "7", "--format", "svg"}).out;
  EXPECT_THAT(usual,
              AllOf(HasSubstr("width=\"980\""), HasSubstr(", n=5/5<"), HasSubstr(">values used / repeats")));
  const std::string chosen =
      Run({"curve", "7", "--format", "svg", "--title", "A < B", "--width", "490", "--no-n"}).out;
  EXPECT_THAT(chosen,
              AllOf(HasSubstr("width=\"490\""), HasSubstr("viewBox=\"0 0 980 "),
                    HasSubstr("<title>A &lt; B</title>"), HasSubstr("\"head\" x=\"68\" y=\"38\">A &lt; B<"),
                    Not(HasSubstr("resnet20-strong")), Not(HasSubstr("n=5")), Not(HasSubstr("values used"))));
  const std::string latex = Run({"curve", "7", "--format", "latex", "--no-n"}).out;
  EXPECT_THAT(latex, AllOf(HasSubstr("\\begin{tabular}{lrrr}"), Not(HasSubstr("repeats &"))));
  EXPECT_THAT(SvgLines(LineSamples().begin()->second, {"lines", 490, true}),
              AllOf(HasSubstr("width=\"490\""), HasSubstr(">lines<")));
  EXPECT_THAT(Run({"study", "compare", "8", "7", "--format", "svg", "--title", "ours"}).out,
              HasSubstr(">ours<"));
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"curve", "7", "--title", "x"},
                                                {"plot", "7", "--width", "490"},
                                                {"curve", "7", "--compare", "engine", "--no-n"},
                                                {"curve", "7", "--format", "latex", "--width", "490"},
                                                {"curve", "7", "--format", "csv", "--no-n"},
                                                {"curve", "7", "--format", "svg", "--width", "1"}})
    EXPECT_THAT(Run(wrong), Exits(ExitCode::kUsage));
}

TEST_F(FigureTest, TheFormatIsThatOfTheNameOrOfTheOption) {
  EXPECT_THAT(Run({"curve", "7", "--file", Path("c.tex")}), Exits(ExitCode::kOk));
  EXPECT_THAT(FileText(Path("c.tex")), HasSubstr("\\begin{tabular}{lrrrr}"));
  EXPECT_THAT(Run({"curve", "7", "--file", Path("c.csv")}), Exits(ExitCode::kOk));
  EXPECT_EQ(FileText(Path("c.csv")), Run({"curve", "7", "-o", "csv"}).out);
  EXPECT_THAT(Run({"curve", "7", "--format", "svg"}).out, StartsWith("<?xml"));
  const Outcome unknown = Run({"curve", "7", "--file", Path("c.gif")});
  EXPECT_THAT(unknown, Exits(ExitCode::kUsage));
  EXPECT_THAT(unknown.err, HasSubstr("use .svg, .pdf, .png, .tex or .csv"));
  EXPECT_THAT(Run({"curve", "7", "--file", "/nowhere/c.svg"}).err, HasSubstr("cannot write /nowhere/c.svg"));
  Terminal terminal;
  terminal.tty = true;
  EXPECT_THAT(Run({"curve", "7", "--format", "png"}, terminal).err, HasSubstr("not for a terminal"));
}

TEST_F(FigureTest, PdfAndPngAreMadeByRsvgConvert) {
  if (!server::MissingProgram({"rsvg-convert"}).empty()) GTEST_SKIP() << "rsvg-convert is not installed";
  EXPECT_THAT(Run({"curve", "7", "--file", Path("c.pdf")}), Exits(ExitCode::kOk));
  EXPECT_THAT(FileText(Path("c.pdf")), StartsWith("%PDF-"));
  EXPECT_THAT(Run({"curve", "7", "--file", Path("c.png")}), Exits(ExitCode::kOk));
  EXPECT_THAT(FileText(Path("c.png")), StartsWith("\x89PNG"));
}

TEST_F(FigureTest, WithoutRsvgConvertTheErrorNamesThePackage) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", dir_.c_str(), 1);
  const Outcome outcome = Run({"curve", "7", "--file", Path("c.pdf")});
  setenv("PATH", path.c_str(), 1);
  EXPECT_THAT(outcome, Exits(ExitCode::kFailure));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rsvg-convert"), HasSubstr("librsvg2-bin"), HasSubstr("SVG")));
  EXPECT_FALSE(std::filesystem::exists(Path("c.pdf")));
}

TEST_F(FigureTest, LatexTablesHaveIntervalsAndEscapedNames) {
  ExpectGolden("curve.tex", Run({"curve", "7", "--format", "latex"}).out);
  EXPECT_EQ(Latex("a_b & 5% {x} \\ ± [1, 2]"), "a\\_b \\& 5\\% \\{x\\} \\textbackslash{} $\\pm$ {[}1, 2]");
}

TEST_F(FigureTest, LatexTablesMarkSeriesInListedOrder) {
  server_.curve.mutable_series(0)->set_listed_order(true);
  EXPECT_THAT(Run({"curve", "7", "--format", "latex"}).out,
              AllOf(HasSubstr("\nnative/ddp fp32 (listed order) & 2 & 5/5 &"),
                    HasSubstr("\nnative/horovod fp32 & 2 & 5/5 &")));
}

TEST_F(FigureTest, StudiesAreComparedInATable) {
  server_.studies = {MakeStudy(8, "new", scalelab::v1::Study::SUCCEEDED, 0, 0, 4),
                     MakeStudy(7, "old", scalelab::v1::Study::SUCCEEDED, 0, 0, 4)};
  const Outcome table = Run({"study", "compare", "8", "7"});
  EXPECT_THAT(table, Exits(ExitCode::kOk));
  ExpectGolden("comparison.txt", table.out);
  EXPECT_EQ(server_.comparison_asked.axis(), "study");
  EXPECT_THAT(server_.comparison_asked.studies(), ElementsAre("studies/8", "studies/7"));
  EXPECT_EQ(Run({"curve", "8", "7"}).out, table.out);
  ExpectGolden("comparison.tex", Run({"study", "compare", "8", "7", "--format", "latex"}).out);
  const auto json = nlohmann::json::parse(Run({"study", "compare", "8", "7", "-o", "json"}).out);
  EXPECT_EQ(json["groups"][0]["pairs"][0]["first_repeats"], 5);
  EXPECT_THAT(Run({"study", "compare", "8", "7", "-o", "csv"}).out,
              HasSubstr("\nengine=native/ddp,1,new & better,old,faster,850,838,862,"));
  EXPECT_THAT(Run({"study", "compare", "8"}), Exits(ExitCode::kUsage));
  EXPECT_THAT(Run({"study", "compare", "8", "7", "--equivalent", "x"}), Exits(ExitCode::kUsage));
  Run({"study", "compare", "8", "7", "--equivalent", "2%"});
  EXPECT_DOUBLE_EQ(server_.comparison_asked.equivalent(), 0.02);
}

TEST_F(FigureTest, EachPairOfThreeComparedStudiesHasItsOwnInterval) {
  server_.comparison = SampleComparisonOfThree();
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"study", "compare", "8", "7", "6"}, {"curve", "8", "7", "6"}}) {
    const auto run = [&](const std::vector<std::string>& options) {
      std::vector<std::string> all = command;
      all.insert(all.end(), options.begin(), options.end());
      const Outcome outcome = Run(all);
      EXPECT_THAT(outcome, Exits(ExitCode::kOk));
      return outcome.out;
    };
    EXPECT_THAT(
        run({}),
        AllOf(StartsWith(
                  "WHERE       RANKS  FIRST  SAMPLES/S  SECOND  SAMPLES/S        DIFFERENCE (%)  VERDICT\n"
                  "native/ddp      1  ours       900.0  base        750.0  +20.0 [+15.3, +24.9]  faster\n"
                  "native/ddp      1  ours       900.0  peer         1000   -10.0 [-14.4, -5.4]  slower\n"
                  "native/ddp      1  base       750.0  peer         1000  -25.0 [-29.4, -20.4]  slower\n"
                  "native/ddp      4  base        2000  peer         2500   -20.0 [-40.7, +8.0]  undecided\n"
                  "\n"),
              Not(HasSubstr("\nfirst:"))));
    EXPECT_THAT(server_.comparison_asked.studies(), ElementsAre("studies/8", "studies/7", "studies/6"));
    EXPECT_THAT(run({"-o", "csv"}),
                HasSubstr("\nengine=native/ddp,1,ours,base,faster,900,,,750,,,0.2,0.153,0.249,5,4,,\n"
                          "engine=native/ddp,1,ours,peer,slower,900,,,1000,,,-0.1,-0.144,-0.054,5,3,,\n"
                          "engine=native/ddp,1,base,peer,slower,750,,,1000,,,-0.25,-0.294,-0.204,4,3,,\n"
                          "engine=native/ddp,4,base,peer,undecided,2000,,,2500,,,-0.2,-0.407,0.08,4,3,,\n"));
    EXPECT_THAT(run({"--format", "latex"}), HasSubstr("\nnative/ddp & 1 & ours & 900.0 & peer & 1000 & "
                                                      "$-$10.0 {[}$-$14.4, $-$5.4] & slower \\\\\n"));
    const auto json = nlohmann::json::parse(run({"-o", "json"}));
    EXPECT_EQ(json["studies"].size(), 3u);
    ASSERT_EQ(json["groups"][0]["pairs"].size(), 3u);
    const auto& pair = json["groups"][0]["pairs"][2];
    EXPECT_EQ(pair["first"], "base");
    EXPECT_EQ(pair["second"], "peer");
    EXPECT_EQ(pair["effect"]["low"], -0.294);
    EXPECT_EQ(pair["effect"]["high"], -0.204);
    // The server of the test has the same curve for each study.
    const std::string mark = ">native/horovod fp32 [a1b2c3d], 2 ranks: ";
    const std::vector<std::string> parts =
        absl::StrSplit(run({"--panels", "throughput", "--format", "svg"}), mark);
    EXPECT_EQ(parts.size(), 4u) << "three studies have a mark";
  }
}

TEST_F(FigureTest, OnePictureShowsAllComparedStudies) {
  const std::string svg = Run({"study", "compare", "8", "7", "--format", "svg"}).out;
  EXPECT_THAT(svg, AllOf(HasSubstr("throughput (samples/s)"), HasSubstr("speedup")));
  EXPECT_THAT(Run({"curve", "8", "7", "--panels", "accuracy", "--format", "svg"}).out,
              AllOf(HasSubstr("accuracy"), Not(HasSubstr("throughput (samples/s)"))));
}

TEST_F(FigureTest, ConditionsSelectComparedCells) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"study", "compare", "8", "7"}, {"curve", "8", "7"}}) {
    const auto run = [&](const std::string& where, const std::string& option, const std::string& format) {
      std::vector<std::string> all = command;
      all.insert(all.end(), {"--where", where, option, format});
      return Run(all);
    };
    const auto groups = nlohmann::json::parse(run("engine=*/ddp and ranks>1", "-o", "json").out)["groups"];
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups[0]["ranks"], 2);
    const auto measured =
        nlohmann::json::parse(run("engine=*/horovod and ranks>4", "-o", "json").out)["measured"];
    ASSERT_EQ(measured.size(), 2u) << "one series of each study";
    EXPECT_EQ(measured[0]["key"]["engine"], "native/horovod");
    ASSERT_EQ(measured[0]["points"].size(), 1u);
    EXPECT_EQ(measured[0]["points"][0]["ranks"], 8);
    const std::string table = run("engine=*/horovod and ranks<8", "-o", "table").out;
    EXPECT_THAT(table, AllOf(HasSubstr("different nodes"), Not(HasSubstr("failed attempt"))));
    EXPECT_THAT(run("ranks>1", "--format", "svg").out,
                AllOf(HasSubstr(", 2 ranks: "), Not(HasSubstr(", 1 rank: "))));
    EXPECT_THAT(run("colour=red", "-o", "csv").err,
                HasSubstr("'colour' is no axis of this comparison; known: engine, ranks"));
  }
}

TEST(JoinCurves, NamesTheStudiesAndTellsEqualNamesApart) {
  GetCurveResponse first = SampleCurve(), second = SampleCurve();
  second.set_study("studies/9");
  GetCurveResponse joined = JoinCurves({first, second});
  EXPECT_EQ(joined.series_size(), 6);
  EXPECT_EQ(joined.series(0).key().fields().at("study").string_value(), "resnet20-strong (studies/7)");
  EXPECT_EQ(joined.series(3).key().fields().at("study").string_value(), "resnet20-strong (studies/9)");
  EXPECT_EQ(joined.scaling(), "strong");
  second.set_display_name("other");
  second.set_scaling("weak");
  joined = JoinCurves({first, second});
  EXPECT_EQ(joined.display_name(), "resnet20-strong and other");
  EXPECT_EQ(joined.scaling(), "");
}

// Returns the coordinates of all points, lines and labels.
std::vector<double> Coordinates(const std::string& svg, const std::string& attribute) {
  std::vector<double> values;
  const std::string begin = " " + attribute + "=\"";
  for (size_t at = svg.find(begin); at != std::string::npos; at = svg.find(begin, at + 1))
    values.push_back(std::strtod(svg.c_str() + at + begin.size(), nullptr));
  return values;
}

void ExpectInside(const std::string& name, const std::string& svg) {
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf\"")))) << name;
  const double height = Coordinates(svg, "height")[0];
  EXPECT_LT(height, 3000) << name;
  for (const char* attribute : {"x", "x1", "x2", "cx"}) {
    for (const double x : Coordinates(svg, attribute)) EXPECT_TRUE(x >= 0 && x <= 980) << name << " " << x;
  }
  for (const char* attribute : {"y", "y1", "y2", "cy"}) {
    for (const double y : Coordinates(svg, attribute)) EXPECT_TRUE(y >= 0 && y <= height) << name << " " << y;
  }
  // tests/python/test_pages.py opens the files in a browser.
  if (const char* folder = std::getenv("SCALELAB_PICTURES"))
    std::ofstream(absl::StrCat(folder, "/", name, ".svg"), std::ios::binary) << svg;
}

TEST(Pictures, NothingIsOutsideOfThePictureAndNoNumberIsMissing) {
  for (const auto& [name, curve] : PictureSamples()) {
    ExpectInside(name, SvgPlot(curve, {Quantity::kThroughput, Quantity::kSpeedup, Quantity::kEfficiency,
                                       Quantity::kMemory, Quantity::kCommunication, Quantity::kAccuracy,
                                       Quantity::kGoodput}));
  }
  for (const auto& [name, plot] : LineSamples()) ExpectInside(name, SvgLines(plot));
}

TEST(Pictures, MarksReplaceNamesThatDoNotFitBelowTheirBars) {
  const auto bars = [](int series) {
    const std::string svg = SvgPlot(WithFactors(CurveOf(series, 6, 0.02)), {Quantity::kSpeedup});
    return svg.substr(svg.find("parts of the mean step"));
  };
  EXPECT_THAT(bars(3), HasSubstr(">framework-0/strategy</text>"));
  EXPECT_THAT(bars(12), AllOf(Not(HasSubstr(">framework-0/strategy</text>")),
                              HasSubstr("<title>framework-0/strategy</title></circle>"),
                              HasSubstr("<title>framework-1/strategy</title></path>")));
}

TEST(Pictures, AnIntervalBeyondTheScaleEndsInAnArrow) {
  GetCurveResponse curve = SampleCurve();
  auto* throughput = curve.mutable_series(0)->mutable_points(1)->mutable_throughput();
  const std::string before = SvgPlot(curve, {Quantity::kThroughput});
  throughput->set_high(1e9);
  const std::string after = SvgPlot(curve, {Quantity::kThroughput});
  EXPECT_EQ(before.find("L"), std::string::npos);
  EXPECT_NE(after.find("L"), std::string::npos);
}

}  // namespace
}  // namespace scalelab::client
