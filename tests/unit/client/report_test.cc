#include <cmath>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/output/text.h"
#include "client/plots/line_plot.h"
#include "client/plots/terminal_plot.h"
#include "client/report/html.h"
#include "client/report/study_report.h"
#include "tests/unit/client/client_fixture.h"
#include "tests/unit/client/golden.h"
#include "tests/unit/client/sample_curve.h"

namespace scalelab::client {
namespace {

using google::protobuf::RepeatedPtrField;
using scalelab::v1::GetCurveResponse;
using scalelab::v1::Run;
using scalelab::v1::Study;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Study SampleStudy() {
  Study study;
  study.set_name("studies/7");
  study.set_display_name("resnet20-strong");
  study.set_owner("alice");
  study.set_state(Study::FAILED);
  study.mutable_counts()->set_succeeded(3);
  study.mutable_counts()->set_failed(1);
  study.mutable_create_time()->set_seconds(1'795'430'000);
  auto& spec = *study.mutable_spec();
  spec.set_study("resnet20-strong");
  (*spec.mutable_fixed()->mutable_fields())["model"].set_string_value("resnet20");
  auto* ranks = spec.add_matrix();
  ranks->set_key("ranks");
  for (const int value : {1, 2}) ranks->add_values()->set_number_value(value);
  spec.set_repeats(2);
  spec.set_seed(5);
  return study;
}

Run SampleRun(int number, int ranks, Run::State state) {
  Run run;
  run.set_name("studies/7/runs/" + std::to_string(number));
  (*run.mutable_key()->mutable_fields())["ranks"].set_number_value(ranks);
  run.mutable_spec()->set_ranks(ranks);
  run.mutable_spec()->set_global_batch(128);
  run.mutable_spec()->set_engine("native/ddp");
  run.mutable_start_time()->set_seconds(1'795'430'001);
  run.set_state(state);
  if (state == Run::FAILED) {
    run.set_cause(scalelab::v1::Attempt::OUT_OF_MEMORY);
    run.set_message("rank 1 used more memory than <its> limit");
  }
  return run;
}

LinePlot SampleLines() {
  LinePlot plot{"a <study>", "train/loss of rank 0", "step", "train/loss", {}};
  for (int line = 0; line < 3; ++line) {
    PlotLine one{line == 2 ? "4 ranks" : "1 rank", {}, {}};
    for (int i = 0; i <= 20; ++i) {
      one.x.push_back(i * 10);
      one.y.push_back(i == 7 && line == 1 ? std::nan("") : 2.3 * std::exp(-0.1 * i * (line + 1)) + 0.1);
    }
    plot.lines.push_back(one);
  }
  return plot;
}

TEST(LinePlot, LooksAsItDid) {
  ExpectGolden("lines.svg", SvgLines(SampleLines()));
  ExpectGolden("lines.txt", TerminalLines(SampleLines(), Terminal{false, false, true, 80, 24}));
  ExpectGolden("lines_ascii.txt", TerminalLines(SampleLines(), Terminal{false, false, false, 80, 24}));
}

TEST(LinePlot, FitsOnATerminal) {
  LinePlot plot = SampleLines();
  for (const char* value :
       {"amp-bf16", "fully-sharded-data-parallel", "activation-checkpointing", "compiled"})
    absl::StrAppend(&plot.lines[0].label, " ", value);
  for (double& x : plot.lines[0].x) x *= 1e4;
  for (const int width : {60, 80}) {
    const Terminal terminal{true, false, true, width, 24};
    std::istringstream lines(TerminalLines(plot, terminal) + TerminalPlot(SampleCurve(), terminal));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(DisplayWidth(line), width) << line;
  }
}

TEST(LinePlot, AValueThatIsNotFiniteInterruptsTheLine) {
  LinePlot plot;
  plot.lines = {{"one", {0, 1, 2, 3}, {1, 2, std::nan(""), 4}}};
  const std::string svg = SvgLines(plot);
  const size_t path = svg.find("<path d=\"");
  ASSERT_NE(path, std::string::npos);
  const std::string d = svg.substr(path, svg.find('"', path + 9) - path);
  EXPECT_EQ(std::count(d.begin(), d.end(), 'M'), 2) << d;
  EXPECT_THAT(d, Not(HasSubstr("nan")));
}

TEST(LinePlot, OnePointAndConstantLinesHaveTicks) {
  LinePlot plot;
  plot.lines = {{"one", {5}, {3}}};
  EXPECT_TRUE(HasPoints(plot));
  EXPECT_THAT(SvgLines(plot),
              AllOf(HasSubstr(">3<"), HasSubstr(">5<"), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  plot.lines[0].y[0] = INFINITY;
  EXPECT_FALSE(HasPoints(plot));
  EXPECT_EQ(TerminalLines(plot, Terminal()), "");
}

TEST(LinePlot, ALongLegendIsShortened) {
  LinePlot plot;
  for (int i = 0; i < 60; ++i)
    plot.lines.push_back({"line " + std::to_string(i), {0, 1}, {0, static_cast<double>(i)}});
  EXPECT_THAT(SvgLines(plot),
              AllOf(HasSubstr("line 39</text>"), Not(HasSubstr("line 40</text>")), HasSubstr("and 20 more")));
}

TEST(HtmlTable, ShowsTheColumnsOfTablesEscaped) {
  Section section;
  section.columns = {
      {"name"}, {"wide", Column::In::kWide}, {"csv", Column::In::kCsv}, {"n", Column::In::kTables, true}};
  section.rows = [](const RowSink& sink) { sink({Cell("<b>&", Tone::kBad), "hidden", "hidden", "1"}); };
  EXPECT_THAT(HtmlTable(section),
              AllOf(HasSubstr("<td class=\"bad\">&lt;b&gt;&amp;</td><td class=\"right\">1</td>"),
                    Not(HasSubstr("hidden")), HasSubstr("<th scope=\"col\">name</th>")));
  section.rows = [](const RowSink&) {};
  section.empty = "nothing";
  EXPECT_THAT(HtmlTable(section), HasSubstr("nothing"));
}

class Report : public ClientTest {
 protected:
  Report() {
    server_.studies = {SampleStudy()};
    server_.runs = {SampleRun(1, 1, Run::SUCCEEDED), SampleRun(2, 2, Run::SUCCEEDED),
                    SampleRun(3, 2, Run::FAILED)};
    server_.curve = SampleCurve();
    scalelab::v1::ReadPointsResponse points;
    points.set_key("train/loss");
    for (int i = 0; i < 5; ++i) {
      points.add_step(i);
      points.add_time(100 + i * 2);
      points.add_value(2.0 / (1 + i));
    }
    server_.points = {points};
    server_.page_size = 2;
    Start();
  }
  static std::string Contents(const std::string& path) {
    std::ifstream file(path);
    return {(std::istreambuf_iterator<char>(file)), {}};
  }
};

TEST_F(Report, IsOnePageWithoutScriptsAndForeignFiles) {
  const std::string path = dir_ + "/report.html";
  EXPECT_THAT(Run({"study", "report", "7", "-o", path}), Exits(ExitCode::kOk));
  const std::string page = Contents(path);
  EXPECT_THAT(page, AllOf(HasSubstr("<h2>Setup</h2>"), HasSubstr("<h2>Scaling</h2>"),
                          HasSubstr("<h2>Learning curves</h2>"), HasSubstr("<h2>Failures</h2>"),
                          HasSubstr("study: resnet20-strong"), HasSubstr("native/horovod")));
  EXPECT_THAT(
      page,
      AllOf(HasSubstr("<p>How does the speed of training change with ranks (1, 2), if the batch of a step "
                      "over all ranks is constant?</p>"),
            HasSubstr("<h2>Provenance</h2>"), HasSubstr("studies/7"), HasSubstr("alice"),
            HasSubstr("page written by"), HasSubstr("<h2>Repeat this study</h2>")));
  EXPECT_THAT(page, AllOf(HasSubstr("out_of_memory"), HasSubstr("more memory than &lt;its&gt; limit")));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("src=")), Not(HasSubstr("href=")),
                          Not(HasSubstr("url(")), Not(HasSubstr("<?xml"))));
  EXPECT_EQ(Run({"study", "report", "7", "-o", "-", "-q"}).out.substr(0, 15), "<!DOCTYPE html>");
}

TEST_F(Report, DescribesTheNodesOfEachFingerprint) {
  scalelab::v1::Run& run = server_.runs[0];
  run.set_fingerprint("a1b2c3d4e5f6");
  auto& attempt = *run.add_attempts();
  for (int i = 0; i < 2; ++i) {
    auto& node = *attempt.add_node_infos();
    node.set_cpu_model("AMD EPYC <7543>");
    node.set_cpus(32);
    node.set_memory_bytes(int64_t{64} << 30);
    node.add_gpus("NVIDIA H200");
    node.add_gpus("NVIDIA H200");
    node.set_os("Debian GNU/Linux 12");
    (*node.mutable_software())["trainer"] = "0.1.0";
    (*node.mutable_software())["libtorch"] = "1.13.1";
  }
  for (const bool proposal : {false, true}) {
    std::vector<std::string> words = {"study", "report", "7", "-o", "-"};
    if (proposal) words.push_back("--proposal");
    const std::string page = Run(words).out;
    EXPECT_THAT(page, AllOf(HasSubstr("Hardware and software a1b2c3d</h3>"),
                            HasSubstr("AMD EPYC &lt;7543&gt;"), HasSubstr("64.0 GiB"),
                            HasSubstr("2 x NVIDIA H200"), HasSubstr("libtorch 1.13.1, trainer 0.1.0")));
    EXPECT_THAT(page, HasSubstr("nodes:</td><td>2</td>"));
  }
}

TEST_F(Report, NamesTheVersionsOfAProgram) {
  ASSERT_GE(server_.curve.series_size(), 2);
  for (const int i : {0, 1}) {
    auto& version = *server_.curve.mutable_series(i)->add_code_versions();
    version.set_runs(3);
    auto& code = *version.mutable_code();
    auto& file = *code.add_files();
    file.set_path("/home/<ada>/train.py");
    file.set_sha256("1111");
    code.set_git_root("/home/<ada>");
    code.set_git_commit("c0ffee");
    code.set_git_dirty(true);
    code.set_diff_sha256("2222");
    code.set_diff_path("/runs/code.diff");
  }
  const std::string page = Run({"study", "report", "7", "-o", "-"}).out;
  EXPECT_THAT(page,
              AllOf(HasSubstr("<h3>Code</h3>"), HasSubstr("/home/&lt;ada&gt;/train.py, SHA-256 1111"),
                    HasSubstr("commit:</td><td>c0ffee"), HasSubstr("yes, SHA-256 2222, in /runs/code.diff"),
                    HasSubstr("successful runs:</td><td>6<")));
}

TEST_F(Report, AStudyWithoutResultsHasAPageToo) {
  server_.curve.clear_series();
  server_.runs.clear();
  const Outcome page = Run({"study", "report", "7", "-o", "-"});
  EXPECT_THAT(page, Exits(ExitCode::kOk));
  EXPECT_THAT(page.out, AllOf(HasSubstr("<h2>Setup</h2>"), Not(HasSubstr("<h2>Scaling</h2>"))));
}

TEST_F(Report, TheProposalNamesTheLargestEfficientSizeOfEachSeries) {
  const Outcome page = Run({"study", "report", "7", "-o", "-", "--proposal"});
  EXPECT_THAT(page, Exits(ExitCode::kOk));
  // Serial fractions 0.03, 0.08 and 0.15: efficiencies at 8 ranks 0.83, 0.64 (4 ranks: 0.81), no result (4 ranks: 0.69).
  EXPECT_THAT(page.out, AllOf(HasSubstr("native/ddp fp32: up to <strong>8 ranks</strong>"),
                              HasSubstr("native/horovod fp32: up to <strong>4 ranks</strong>"),
                              HasSubstr("native/ddp amp-bf16: up to <strong>2 ranks</strong>"),
                              HasSubstr("core-hours per epoch"), HasSubstr("node-hours per epoch"),
                              HasSubstr("<td class=\"right\">8</td><td class=\"right\">0/5</td>"),
                              HasSubstr("<h2>Method</h2>")));
  EXPECT_THAT(Run({"study", "report", "7", "-o", "-", "--proposal", "--min-efficiency", "90"}).out,
              HasSubstr("native/ddp fp32: up to <strong>4 ranks</strong>"));
  EXPECT_THAT(Run({"study", "report", "7", "-o", "-", "--min-efficiency", "90"}), Exits(ExitCode::kUsage));
  for (const char* percent : {"nan", "0", "101"}) {
    const Outcome refused =
        Run({"study", "report", "7", "-o", "-", "--proposal", "--min-efficiency", percent});
    EXPECT_THAT(refused, Exits(ExitCode::kUsage)) << percent;
    EXPECT_EQ(refused.out, "") << percent;
  }
}

// An epoch on 4 ranks with 2 ranks on a node occupies 2 nodes.
TEST(Proposal, NodesCountWhole) {
  Study study = SampleStudy();
  study.mutable_spec()->mutable_resources()->set_ranks_per_node(2);
  GetCurveResponse curve;
  auto* point = curve.add_series()->add_points();
  point->set_ranks(3);
  point->set_n(2);
  SetEstimate(point->mutable_throughput(), 100, 1);
  SetEstimate(point->mutable_epoch_seconds(), 1800, 10);
  const RepeatedPtrField<scalelab::v1::Run> runs;
  EXPECT_THAT(
      ScalingProposal({study, runs, curve, {}, absl::UnixEpoch()}, 0.7),
      HasSubstr("<td class=\"right\">1.500</td><td class=\"right\">2</td><td class=\"right\">1.000</td>"));
}

// The efficiency at the largest efficient size: with an interval above the limit, with an interval that contains the
// limit, and without an interval.
TEST(Proposal, SaysWhetherMoreRepeatsAreNeeded) {
  const auto page = [](int repeats, double half_width) {
    GetCurveResponse curve;
    auto& series = *curve.add_series();
    series.set_baseline_ranks(1);
    for (const int ranks : {1, 2}) {
      auto* point = series.add_points();
      point->set_ranks(ranks);
      point->set_n(repeats);
      SetEstimate(point->mutable_throughput(), 100, 0);
      SetEstimate(point->mutable_efficiency(), ranks == 1 ? 1 : 0.8, ranks == 1 ? 0 : half_width);
    }
    return ScalingProposal({SampleStudy(), {}, curve, {}, absl::UnixEpoch()}, 0.7);
  };
  const std::string settles = "The interval contains 70%: more repeats would settle it.";
  const std::string gives = "more repeats would give one";
  EXPECT_THAT(
      page(3, 0.05),
      AllOf(HasSubstr("<strong>2 ranks</strong> the efficiency is at least 70% (80% [75, 85] there)."),
            Not(HasSubstr("more repeats"))));
  EXPECT_THAT(page(3, 0.15), AllOf(HasSubstr("(80% [65, 95] there). " + settles), Not(HasSubstr(gives))));
  EXPECT_THAT(
      page(1, 0),
      AllOf(HasSubstr("(80% there). This efficiency has no interval, because it is that of one repeat: " +
                      gives),
            Not(HasSubstr("The interval contains"))));
  EXPECT_THAT(page(3, 0), AllOf(HasSubstr("This efficiency has no interval: " + gives),
                                Not(HasSubstr("The interval contains"))));
}

// The GPUs and cores of a rank are keys of a study too.
TEST(Proposal, TheGpusOfARankAreThoseOfTheSeries) {
  Study study = SampleStudy();
  (*study.mutable_spec()->mutable_fixed()->mutable_fields())["cpus_per_rank"].set_number_value(8);
  GetCurveResponse curve;
  for (const int gpus : {0, 4}) {
    auto* series = curve.add_series();
    (*series->mutable_key()->mutable_fields())["gpus_per_rank"].set_number_value(gpus);
    auto* point = series->add_points();
    point->set_ranks(3);
    point->set_n(2);
    SetEstimate(point->mutable_throughput(), 100, 1);
    SetEstimate(point->mutable_epoch_seconds(), 1800, 10);
  }
  const RepeatedPtrField<scalelab::v1::Run> runs;
  EXPECT_THAT(ScalingProposal({study, runs, curve, {}, absl::UnixEpoch()}, 0.7),
              AllOf(HasSubstr("GPU-hours or core-hours per epoch"), HasSubstr(">12.00 core-hours<"),
                    HasSubstr(">6.000 GPU-hours<"), HasSubstr("3600 x ranks x 8; ")));
}

TEST_F(Report, AFileThatCannotBeWrittenIsAnError) {
  const Outcome failed = Run({"study", "report", "7", "-o", dir_ + "/none/report.html"});
  EXPECT_THAT(failed, Exits(ExitCode::kFailure));
  EXPECT_THAT(failed.err, HasSubstr("cannot write"));
}

TEST_F(Report, APlotHasALineForEachRun) {
  const Outcome plot = Run({"plot", "7"});
  EXPECT_THAT(plot, Exits(ExitCode::kOk));
  EXPECT_THAT(plot.out, AllOf(HasSubstr("train/loss"), HasSubstr("1 rank"), HasSubstr("2 ranks")));
  ASSERT_THAT(server_.points_asked, SizeIs(3));
  EXPECT_EQ(server_.points_asked[0].key(), "train/loss");
  EXPECT_EQ(server_.points_asked[0].rank(), 0);
  EXPECT_THAT(Run({"plot", "7", "-o", "csv"}).out,
              AllOf(HasSubstr("line,label,x,y,run\n1,1 rank,0,2,"), HasSubstr("3,2 ranks,4,0.4,")));
}

TEST_F(Report, APlotOfSelectedRunsReadsTheirPointsOnly) {
  EXPECT_THAT(Run({"plot", "7", "--where", "ranks>1 and engine=native/*", "-o", "csv"}).out,
              AllOf(HasSubstr("line,label,x,y,run\n1,2 ranks,0,"), Not(HasSubstr("1 rank"))));
  EXPECT_THAT(server_.points_asked, SizeIs(2));
  EXPECT_THAT(Run({"plot", "7", "--where", "ranks>2"}).err,
              HasSubstr("no selected run has points of train/loss"));
  EXPECT_THAT(Run({"plot", "7", "--where", "colour=red"}).err,
              HasSubstr("'colour' is no field of these runs"));
}

TEST_F(Report, ThePlotsAxisIsStepsTimeOrSamples) {
  EXPECT_THAT(Run({"plot", "7", "--x", "time", "-o", "csv"}).out, HasSubstr("\n1,1 rank,8,0.4,"));
  EXPECT_THAT(Run({"plot", "7", "--x", "samples", "-o", "csv"}).out, HasSubstr("\n1,1 rank,512,0.4,"));
  const Outcome epochs = Run({"plot", "7", "--x", "samples", "--y", "eval/accuracy"});
  EXPECT_THAT(epochs, Exits(ExitCode::kUsage));
  EXPECT_THAT(epochs.err, HasSubstr("belongs to epochs"));
}

TEST_F(Report, AnUnknownAxisOrMetricIsNamed) {
  const Outcome axis = Run({"plot", "7", "--by", "colour"});
  EXPECT_THAT(axis, Exits(ExitCode::kUsage));
  EXPECT_THAT(axis.err, HasSubstr("no axis 'colour'; it has: ranks"));
  server_.points.clear();
  const Outcome metric = Run({"plot", "7", "--y", "train/los"});
  EXPECT_THAT(metric, Exits(ExitCode::kFailure));
  EXPECT_THAT(metric.err, HasSubstr("no run has points of train/los"));
}

TEST_F(Report, ThePictureOfAPlotIsWritten) {
  const std::string path = dir_ + "/loss.svg";
  EXPECT_THAT(Run({"plot", "7", "--svg", path}), Exits(ExitCode::kOk));
  EXPECT_THAT(Contents(path), AllOf(HasSubstr("<svg"), HasSubstr("2 ranks")));
}

}  // namespace
}  // namespace scalelab::client
