#include "client/commands/predict/prediction_table.h"

#include <sstream>

#include "client/commands/predict/network_file.h"
#include "client/commands/sections.h"
#include "client/output/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/golden.h"
#include "tests/unit/client/sample_curve.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListPredictionsResponse;
using scalelab::v1::Prediction;
using ::testing::AllOf;
using ::testing::HasSubstr;

ListPredictionsResponse Some() {
  ListPredictionsResponse response;
  Prediction& scored = *response.add_predictions();
  scored.set_name("predictions/7");
  scored.set_display_name("large");
  scored.set_ranks(16);
  scored.set_largest_measured(8);
  scored.mutable_predicted()->set_mean(1020);
  scored.mutable_predicted()->set_low(980);
  scored.mutable_predicted()->set_high(1060);
  scored.set_state(Prediction::SCORED);
  scored.mutable_measured()->set_mean(1000);
  scored.set_error(0.02);
  scored.set_covered(true);
  Prediction& refused = *response.add_predictions();
  refused.set_display_name("large");
  refused.set_ranks(128);
  refused.set_largest_measured(8);
  refused.set_state(Prediction::REFUSED);
  refused.set_reason("too far");
  response.mutable_summary()->set_predictions(3);
  response.mutable_summary()->set_scored(2);
  response.mutable_summary()->set_covered(1);
  response.mutable_summary()->set_median_error(0.02);
  response.mutable_summary()->set_p90_error(0.1);
  return response;
}

std::string Print(OutputFormat format, const ListPredictionsResponse& response) {
  std::ostringstream out;
  Terminal terminal;
  terminal.width = 200;
  EXPECT_TRUE(MakePrinter(format, out, terminal)
                  ->Print({response,
                           {PredictionTable(response.predictions()),
                            PredictionReasons(response.predictions()), PredictionFacts(response.summary())}})
                  .ok());
  return out.str();
}

TEST(PredictionTable, ShowsErrorsAndWhetherTheIntervalWasRight) {
  const std::string text = Print(OutputFormat::kTable, Some());
  EXPECT_THAT(text, HasSubstr("1020 [980.0, 1060]"));
  EXPECT_THAT(text, HasSubstr("+2.0"));
  EXPECT_THAT(text, HasSubstr("within"));
  EXPECT_THAT(text, HasSubstr("refused:  too far"));
  EXPECT_THAT(text, HasSubstr("1 of 2, 50.0%"));
  EXPECT_THAT(text, HasSubstr("median 2.0%, 90th percentile 10.0%"));
}

// Long names, wide intervals and every state.
ListPredictionsResponse Many() {
  ListPredictionsResponse response;
  const auto add = [&response](int number, int ranks, Prediction::State state) -> Prediction& {
    Prediction& p = *response.add_predictions();
    p.set_display_name("resnet50-imagenet-strong-scaling-12");
    p.set_source_study("studies/11");
    p.set_ranks(ranks);
    p.set_largest_measured(16);
    p.set_state(state);
    auto& key = *p.mutable_key()->mutable_fields();
    key["engine"].set_string_value("pytorch/fully-sharded");
    key["precision"].set_string_value("amp-bf16");
    if (state == Prediction::REFUSED) return p;
    p.set_name(absl::StrCat("predictions/", number));
    SetEstimate(p.mutable_predicted(), 812.4 * ranks, 24 * ranks);
    p.set_reason("interval x 1.31, from 57 scores");
    auto* model = p.add_models();
    model->set_model("log-log");
    model->set_throughput(820 * ranks);
    return p;
  };
  add(1003, 64, Prediction::PENDING);
  Prediction& within = add(1002, 32, Prediction::SCORED);
  SetEstimate(within.mutable_measured(), 25'410, 310);
  within.set_error(0.0231);
  within.set_covered(true);
  Prediction& outside = add(1001, 24, Prediction::SCORED);
  SetEstimate(outside.mutable_measured(), 17'012, 120);
  outside.set_error(0.146);
  add(1000, 20, Prediction::UNRESOLVED).set_reason("its runs ended without a throughput");
  for (const int ranks : {128, 256})
    add(0, ranks, Prediction::REFUSED)
        .set_reason(
            absl::StrCat(ranks,
                         " ranks are more than 4 times the largest measured world size, 16, the limit "
                         "with strong scaling; measure a larger one"));
  auto& summary = *response.mutable_summary();
  summary.set_predictions(4);
  summary.set_scored(2);
  summary.set_covered(1);
  summary.set_median_error(0.0231);
  summary.set_p90_error(0.146);
  return response;
}

TEST(PredictionTable, FitsTheTerminal) {
  for (const int width : {80, 200}) {
    std::ostringstream out;
    const ListPredictionsResponse response = Many();
    const Answer answer{response,
                        {PredictionTable(response.predictions()), PredictionReasons(response.predictions()),
                         PredictionFacts(response.summary())}};
    ASSERT_TRUE(
        MakePrinter(OutputFormat::kTable, out, Terminal{true, false, true, width, 24})->Print(answer).ok());
    ExpectGolden(absl::StrCat("width_", width, "_predictions.txt"), out.str());
    std::istringstream lines(out.str());
    for (std::string line; std::getline(lines, line);) EXPECT_LE(DisplayWidth(line), width) << line;
  }
}

TEST(PredictionTable, WithoutPredictionsNamesTheCommand) {
  EXPECT_EQ(Print(OutputFormat::kTable, {}), "no predictions; `scalelab predict STUDY` makes them\n");
}

TEST(PredictionTable, CsvHasTheNumbers) {
  EXPECT_THAT(Print(OutputFormat::kCsv, Some()),
              HasSubstr("7,large,-,8,16,1020,980,1060,1000,,,0.02,within,\n"));
}

constexpr char kAllReduces[] = R"({"name":"allreduce/raw/4_ranks/1024_bytes/time","value":9.0,"unit":"us"}
{"name":"allreduce/mpi_started/4_ranks/1024_bytes/algbw","value":1.5,"unit":"GB/s"}
{"name":"allreduce/mpi_started/4_ranks/1024_bytes/time","value":12.5,"unit":"us","ratio":0.7}
not a line of it
{"name":"allreduce/mpi_started/4_ranks/4096_bytes/time","value":14.5,"unit":"us"}
)";

TEST(NetworkFile, HasTheTimesOfOneContender) {
  const auto measured = ParseAllReduces(kAllReduces, "network.jsonl", "mpi_started");
  ASSERT_TRUE(measured.ok()) << measured.status();
  ASSERT_EQ(measured->size(), 2u);
  EXPECT_EQ((*measured)[0].ranks(), 4);
  EXPECT_EQ((*measured)[0].bytes(), 1024);
  EXPECT_NEAR((*measured)[0].seconds(), 12.5e-6, 1e-12);
}

TEST(NetworkFile, OfAnotherKindOrWithoutTheContenderIsRefused) {
  EXPECT_THAT(ParseAllReduces("study: x\n", "study.yaml", "mpi").status().message(),
              AllOf(HasSubstr("study.yaml has no times"), HasSubstr("scalelab-bench allreduce")));
  EXPECT_THAT(
      ParseAllReduces(R"({"name":"a","value":1,"unit":null})", "other.json", "mpi").status().message(),
      HasSubstr("other.json has no times"));
  EXPECT_THAT(ParseAllReduces(kAllReduces, "network.jsonl", "gloo").status().message(),
              AllOf(HasSubstr("no all-reduces of gloo"), HasSubstr("mpi_started, raw")));
  EXPECT_THAT(ReadAllReduces("/nowhere/network.jsonl", "mpi").status().message(),
              HasSubstr("cannot read /nowhere/network.jsonl: No such file"));
  EXPECT_THAT(ReadAllReduces("/dev/zero", "mpi").status().message(),
              HasSubstr("/dev/zero has more than 16 MiB"));
  EXPECT_THAT(ReadAllReduces("/", "mpi").status().message(), HasSubstr("cannot read /: Is a directory"));
}

TEST(RepeatsText, IsANumberOrTheRule) {
  scalelab::v1::StudySpec spec;
  EXPECT_EQ(RepeatsText(spec), "1");
  spec.set_repeats(5);
  EXPECT_EQ(RepeatsText(spec), "5");
  spec.mutable_adaptive_repeats()->set_half_width(0.025);
  EXPECT_EQ(RepeatsText(spec), "2 to 10, until the half width of the intervals is 2.5%");
}

}  // namespace
}  // namespace scalelab::client
