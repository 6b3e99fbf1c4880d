// Tests of tables on terminals of 80 and 200 columns.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/text.h"
#include "tests/unit/client/client_fixture.h"
#include "tests/unit/client/golden.h"
#include "tests/unit/client/sample_curve.h"

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
      for (const char* axis : {"engine", "model", "dataset"})
        key[axis].set_string_value("a value that is long");
      key["learning_rate"].set_number_value(1.0 / ranks);
      cell->set_ranks(ranks);
      cell->set_global_batch(1'048'576);
      cell->set_batch_per_rank(1'048'576 / ranks);
      cell->set_learning_rate(1.0 / ranks);
      cell->set_steps(100'000);
      auto* allocation = server_.plan.add_allocations();
      allocation->set_nodes(ranks / 8);
      allocation->set_time_seconds(400'000);
      allocation->set_runs(1000);
    }
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
  void ExpectFits(const std::vector<std::string>& command) {
    const Outcome outcome = Run(command, Terminal{true, false, true, GetParam(), 24});
    EXPECT_THAT(outcome, Exits(ExitCode::kOk));
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(DisplayWidth(line), GetParam()) << absl::StrJoin(command, " ") << ": " << line;
  }
  // Compares the output with a golden file, and checks that no line of the tables is wider than the terminal. Facts below
  // tables are sentences, which may wrap.
  void Expect(const std::string& name, const std::vector<std::string>& arguments) {
    const Outcome outcome = Run(arguments, Terminal{true, false, true, GetParam(), 24});
    EXPECT_THAT(outcome, Exits(ExitCode::kOk));
    ExpectGolden(absl::StrCat("width_", GetParam(), "_", name, ".txt"), outcome.out);
    std::istringstream lines(outcome.out);
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
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"curve", "12", "--factors"},
                                             {"curve", "12", "--compare", "study"},
                                             {"advise", "12"},
                                             {"study", "plan", StudyFile()},
                                             {"study", "keys"},
                                             {"study", "keys", "limits", "repeats"},
                                             {"run", "metrics", "400"},
                                             {"plot", "12"}})
    ExpectFits(command);
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

// All other commands that print lists.
TEST_P(TableWidth, EveryListFits) {
  const std::string long_name = "a-user-with-a-long-name@physics.example.org";
  for (int i = 0; i < 2; ++i) {
    scalelab::v1::Token& token = server_.tokens.emplace_back();
    token.set_name(absl::StrCat("tokens/", 1000 + i));
    token.set_user(long_name);
    token.set_scope(scalelab::v1::SUBMIT_SCOPE);
    token.set_description("dashboard in a browser at 2001:db8:85a3::8a2e:370:7334");
    auto& entry = server_.audit.emplace_back();
    entry.set_user(long_name);
    entry.set_source("personal token 17");
    entry.set_address("2001:db8:85a3::8a2e:370:7334");
    entry.set_action("SetStudyPriority");
    entry.set_target("studies/1234567");
    entry.set_result("PERMISSION_DENIED");
    entry.set_detail("only admins and the owner of a study may change its priority");
    entry.set_count(1'000'000);
    for (auto* time : {token.mutable_create_time(), token.mutable_expire_time(),
                       token.mutable_last_use_time(), entry.mutable_time()})
      time->set_seconds(1'795'000'000);
    auto* usage = server_.usage.add_usages();
    usage->set_user(long_name);
    usage->set_node_seconds(1e9);
    usage->set_gpu_seconds(1e9);
    usage->set_gpu_seconds_week(1e9);
    auto* waiting = server_.queue.add_entries();
    waiting->set_study("studies/1234567");
    waiting->set_display_name("resnet50-imagenet-strong-scaling");
    waiting->set_owner(long_name);
    waiting->set_partition("accelerated-h100-large");
    waiting->set_queued_runs(100'000);
    waiting->set_reason("the limit of 4 pending allocations of this user in this partition is reached");
    auto* allocation = server_.cluster.add_allocations();
    allocation->set_name("allocations/4a0d5b6c7d8e9f00");
    allocation->set_state(scalelab::v1::Allocation::RUNNING);
    allocation->set_external_id("12345678");
    allocation->set_study("studies/1234567");
    allocation->set_run("studies/1234567/runs/12345678");
    allocation->set_reason("waits for resources of the partition");
    allocation->mutable_create_time()->set_seconds(1'795'000'000);
    auto* node = server_.cluster.add_nodes();
    node->set_name("compute-rack12-node034");
    node->set_state("allocated");
    for (const char* name : {"accelerated", "accelerated-large", "development"}) node->add_partitions(name);
    node->set_reason("kernel update, back on Monday");
    node->set_cpus(256);
    node->set_memory_mib(1'000'000);
    node->set_gpus(8);
    auto* worker = server_.cluster.add_workers();
    worker->set_node(node->name());
    worker->set_allocation(allocation->name());
    worker->set_version("0.1.0+g1234567");
    for (int gpu = 0; gpu < 4; ++gpu) worker->add_gpus("NVIDIA H100 80GB HBM3");
    worker->mutable_last_seen_time()->set_seconds(1'795'000'000);
    auto* avoided = server_.cluster.add_avoided_nodes();
    avoided->set_name(node->name());
    avoided->set_reason("worker lost: the node did not answer for 60 seconds");
    avoided->mutable_since_time()->set_seconds(1'795'000'000);
    avoided->mutable_until_time()->set_seconds(1'795'001'800);
  }
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"token", "list"}, {"admin", "audit"}, {"admin", "usage"}, {"queue"}, {"cluster"}})
    ExpectFits(command);
}

TEST_P(TableWidth, AFileOrPipeGetsEveryColumn) {
  EXPECT_THAT(Run({"curve", "12"}).out, Not(HasSubstr("left out")));
  EXPECT_THAT(Run({"curve", "12", "-o", "wide"}, Terminal{true, false, true, 80, 24}).out,
              Not(HasSubstr("left out")));
}

}  // namespace
}  // namespace scalelab::client
