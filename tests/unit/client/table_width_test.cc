// Tests of tables on terminals of 80 and 200 columns.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/output/text.h"
#include "tests/unit/client/client_fixture.h"
#include "tests/unit/client/golden.h"
#include "tests/unit/client/sample_curve.h"
#include "tests/unit/client/sample_lists.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Study;
using ::testing::HasSubstr;
using ::testing::Not;

class TableWidth : public ClientTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    Start();
    server_.page_size = 100;
    for (int number = 12; number > 9; --number)
      server_.studies.push_back(MakeStudy(number, absl::StrCat("resnet50-imagenet-strong-scaling-", number),
                                          number == 12 ? Study::RUNNING : Study::SUCCEEDED, 0,
                                          number == 12 ? 2 : 0, 38, 2));
    server_.curve = SampleCurveWithCommunication();
    for (int i = 0; i < 3; ++i) AddRun(i);
    AddFrameworks();
    AddComparison();
  }
  void AddRun(int i) {
    scalelab::v1::Run& run = server_.runs.emplace_back();
    run.set_name(absl::StrCat("studies/12/runs/", 400 + i));
    auto& key = *run.mutable_key()->mutable_fields();
    key["engine"].set_string_value("pytorch/fully-sharded");
    key["model"].set_string_value("vit_base_16");
    key["precision"].set_string_value("amp-bf16");
    key["params.dropout"].set_number_value(0.1 * (i + 1));
    key["ranks"].set_number_value(1 << i);
    run.set_repeat(i);
    run.set_state(i == 1 ? scalelab::v1::Run::FAILED : scalelab::v1::Run::SUCCEEDED);
    if (i == 1) run.set_cause(scalelab::v1::Attempt::OUT_OF_MEMORY);
    if (i == 1)
      run.set_message("rank 3: CUDA out of memory, tried to allocate 2.00 GiB; use a smaller batch");
    run.mutable_start_time()->set_seconds(1'795'000'000);
    run.mutable_finish_time()->set_seconds(1'795'000'042);
    (*run.mutable_summary())["run/throughput"] = 812.4;
  }
  void AddFrameworks() {
    for (const char* engine : {"native/ddp", "pytorch/fully-sharded", "horovod/tensorflow"}) {
      auto* framework = server_.frameworks.add_frameworks();
      framework->set_engine(engine);
      framework->set_usable(std::string(engine) == "native/ddp");
      framework->set_version(framework->usable() ? "1.13.0a0+gitunknown" : "");
      if (framework->usable()) continue;
      framework->set_reason("python3 cannot import torch: No module named 'torch'");
      framework->set_fix(
          "deploy/frameworks pytorch2 creates an environment in ~/.local/share/scalelab/frameworks");
    }
  }
  void AddComparison() {
    server_.comparison.set_axis("study");
    server_.comparison.add_studies("studies/12");
    server_.comparison.add_studies("studies/11");
    for (const int ranks : {1, 16}) {
      auto* group = server_.comparison.add_groups();
      group->set_ranks(ranks);
      (*group->mutable_key()->mutable_fields())["engine"].set_string_value("pytorch/fully-sharded");
      auto* pair = group->add_pairs();
      pair->set_first("resnet50-imagenet-strong-scaling-12");
      pair->set_second("resnet50-imagenet-strong-scaling-11");
      SetEstimate(pair->mutable_first_throughput(), 850 * ranks, 12);
      SetEstimate(pair->mutable_second_throughput(), 812.4 * ranks, 10);
      SetEstimate(pair->mutable_effect(), 0.046, 0.021);
      pair->set_verdict(scalelab::v1::ComparedPair::FASTER);
    }
  }
  void AddAdvice() {
    for (const char* engine : {"pytorch/fully-sharded", "native/ddp"}) {
      auto* advice = server_.advice.add_advice();
      (*advice->mutable_key()->mutable_fields())["engine"].set_string_value(engine);
      advice->set_text("Use 1024 ranks: the next doubling gains 12.4%, less than the 50% that pay.");
      for (const int ranks : {512, 1024}) {
        advice->add_candidates(ranks);
        auto* size = advice->add_sizes();
        size->set_ranks(ranks);
        SetEstimate(size->mutable_hours(), 123.4, 2.5);
        SetEstimate(size->mutable_cost(), 123'400, 250);
        SetEstimate(size->mutable_gain(), 0.8, 0.05);
        SetEstimate(size->mutable_hour_price(), 1234, 100);
        size->set_undecided(true);
        size->set_in_time(true);
      }
    }
  }
  void AddPlan() {
    for (const int ranks : {512, 1024}) {
      auto* cell = server_.plan.add_cells();
      auto& key = *cell->mutable_key()->mutable_fields();
      key["engine"].set_string_value("pytorch/fully-sharded");
      key["model"].set_string_value("vision-transformer-base");
      key["dataset"].set_string_value("imagefolder");
      key["learning_rate"].set_number_value(1.0 / ranks);
      cell->set_ranks(ranks);
      cell->set_global_batch(1'048'576);
      cell->set_batch_per_rank(1'048'576 / ranks);
      cell->set_learning_rate(1.0 / ranks);
      if (ranks == 512) cell->set_steps(100'000);
      auto* allocation = server_.plan.add_allocations();
      allocation->set_nodes(ranks / 8);
      allocation->set_ranks_per_node(8);
      allocation->set_time_seconds(400'000);
      allocation->set_runs(1000);
    }
    server_.plan.set_runs(2000);
    server_.plan.set_node_hours_largest(28'444);
    server_.plan.set_node_hours_own(21'333);
    server_.plan.add_unusable("horovod/mxnet: python3 cannot import mxnet: No module named 'mxnet'");
  }
  void AddPoints() {
    for (const char* key : {"train/loss", "layer4.2.conv3/gradient_norm_before_clipping"}) {
      auto& part = server_.points.emplace_back();
      part.set_key(key);
      part.set_rank(1023);
      for (const int step : {0, 500'000, 1'000'000}) {
        part.add_step(step);
        part.add_time(1'795'000'000.5 + step);
        part.add_value(1.5e-7 * (1 + step));
      }
    }
  }
  // Runs a command, and compares its output with a golden file.
  std::string Print(const std::string& name, const std::vector<std::string>& command) {
    const Outcome outcome = Run(command, Terminal{true, false, true, GetParam(), 24});
    EXPECT_THAT(outcome, Exits(ExitCode::kOk));
    ExpectGolden(absl::StrCat("width_", GetParam(), "_", name, ".txt"),
                 absl::StrReplaceAll(outcome.out, {{socket_, "unix:SOCKET"}}));
    return outcome.out;
  }
  // Compares the output with a golden file, and checks that no line is wider than the terminal.
  void ExpectFits(const std::string& name, const std::vector<std::string>& command) {
    std::istringstream lines(Print(name, command));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(DisplayWidth(line), GetParam()) << line;
  }
  // Compares the output with a golden file, and checks that no line of the tables is wider than the terminal. Facts below
  // tables are sentences, which may wrap.
  void Expect(const std::string& name, const std::vector<std::string>& arguments) {
    std::istringstream lines(Print(name, arguments));
    for (std::string line; std::getline(lines, line) && !line.empty();)
      EXPECT_LE(DisplayWidth(line), GetParam()) << line;
  }
};

INSTANTIATE_TEST_SUITE_P(Columns, TableWidth, ::testing::Values(80, 200),
                         [](const auto& info) { return absl::StrCat("Of", info.param); });

TEST_P(TableWidth, StudiesFit) { Expect("study_list", {"study", "list"}); }
TEST_P(TableWidth, RunsFit) { Expect("run_list", {"run", "list", "12"}); }
TEST_P(TableWidth, CurvesFit) { Expect("curve", {"curve", "12", "--no-plot"}); }
TEST_P(TableWidth, FrameworksFit) { Expect("frameworks", {"cluster", "frameworks"}); }
TEST_P(TableWidth, ComparisonsFit) { Expect("comparison", {"study", "compare", "12", "11", "--no-plot"}); }

TEST_P(TableWidth, EveryTableOfResultsFits) {
  server_.curve = SampleCurveWithFactors();
  for (auto& series : *server_.curve.mutable_series())
    (*series.mutable_key()->mutable_fields())["model"].set_string_value("vision-transformer-base");
  AddAdvice();
  AddPlan();
  AddPoints();
  ExpectFits("factors", {"curve", "12", "--factors"});
  ExpectFits("curve_compare", {"curve", "12", "--compare", "study"});
  ExpectFits("advise", {"advise", "12"});
  ExpectFits("plan", {"study", "plan", StudyFile()});
  ExpectFits("run_metrics", {"run", "metrics", "400"});
  ExpectFits("plot", {"plot", "12"});
}

TEST_P(TableWidth, KeysFit) {
  ExpectFits("keys", {"study", "keys"});
  ExpectFits("keys_of_two", {"study", "keys", "limits", "repeats"});
}

TEST_P(TableWidth, TruncatedSentencesAreCompleteBelowTheTable) {
  for (int i = 3; i < 12; ++i) {
    AddRun(i);
    server_.runs.back().set_message(absl::StrCat("rank ", i, " lost the connection to node n", i, ", which ",
                                                 "did not answer for more than 60 seconds; run it again"));
  }
  const std::string out = Run({"run", "list", "12"}, Terminal{true, false, true, GetParam(), 24}).out;
  EXPECT_THAT(out,
              HasSubstr("\nrun 401, message: rank 3: CUDA out of memory, tried to allocate 2.00 GiB; use"));
  EXPECT_THAT(out, HasSubstr("\nrun 406, message: rank 6 lost"));
  EXPECT_THAT(out, Not(HasSubstr("\nrun 407, message")));
  EXPECT_THAT(out, HasSubstr("\nand 5 more texts: -o wide shows all\n"));
  EXPECT_THAT(Run({"run", "list", "12"}).out, Not(HasSubstr("run 401, message")));
}

TEST_P(TableWidth, TokensFit) {
  AddTokens(server_);
  ExpectFits("token_list", {"token", "list"});
}

TEST_P(TableWidth, AuditFits) {
  AddAudit(server_);
  ExpectFits("audit", {"admin", "audit"});
}

TEST_P(TableWidth, UsageFits) {
  AddUsage(server_);
  ExpectFits("usage", {"admin", "usage"});
}

TEST_P(TableWidth, PrunedDataFit) {
  AddPruned(server_);
  ExpectFits("prune", {"admin", "prune", "--dry-run"});
}

TEST_P(TableWidth, QueueFits) {
  AddQueue(server_);
  ExpectFits("queue", {"queue"});
}

TEST_P(TableWidth, ClusterFits) {
  AddCluster(server_);
  ExpectFits("cluster", {"cluster"});
}

TEST_P(TableWidth, StudyShowFits) {
  AddDetails(server_.studies[0]);
  ExpectFits("study_show", {"study", "show", "12"});
}

TEST_P(TableWidth, RunShowFits) {
  AddDetails(server_.runs[1]);
  ExpectFits("run_show", {"run", "show", "401"});
}

// Reasons are not truncated, so they may be wider than the terminal.
TEST_P(TableWidth, FactsOfExplanationsFit) {
  AddReasons(server_);
  Expect("study_explain", {"study", "explain", "12"});
  Expect("run_explain", {"run", "explain", "401"});
}

TEST_P(TableWidth, AFileOrPipeGetsEveryColumn) {
  EXPECT_THAT(Run({"curve", "12"}).out, Not(HasSubstr("left out")));
  EXPECT_THAT(Run({"curve", "12", "-o", "wide"}, Terminal{true, false, true, 80, 24}).out,
              Not(HasSubstr("left out")));
}

}  // namespace
}  // namespace scalelab::client
