// Tables on terminals of 80 and 200 columns.
#include "absl/strings/str_cat.h"
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

TEST_P(TableWidth, AFileOrPipeGetsEveryColumn) {
  EXPECT_THAT(Run({"curve", "12"}).out, Not(HasSubstr("left out")));
  EXPECT_THAT(Run({"curve", "12", "-o", "wide"}, Terminal{true, false, true, 80, 24}).out,
              Not(HasSubstr("left out")));
}

}  // namespace
}  // namespace scalelab::client
