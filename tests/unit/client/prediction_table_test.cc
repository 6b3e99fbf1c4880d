#include "client/commands/predict/prediction_table.h"

#include <sstream>

#include "client/commands/sections.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListPredictionsResponse;
using scalelab::v1::Prediction;
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
  EXPECT_TRUE(
      MakePrinter(format, out, terminal)
          ->Print({response, {PredictionTable(response.predictions()), PredictionFacts(response.summary())}})
          .ok());
  return out.str();
}

TEST(PredictionTable, ShowsErrorsAndWhetherTheIntervalWasRight) {
  const std::string text = Print(OutputFormat::kTable, Some());
  EXPECT_THAT(text, HasSubstr("1020 [980.0, 1060]"));
  EXPECT_THAT(text, HasSubstr("+2.0"));
  EXPECT_THAT(text, HasSubstr("within"));
  EXPECT_THAT(text, HasSubstr("too far"));
  EXPECT_THAT(text, HasSubstr("1 of 2, 50.0%"));
  EXPECT_THAT(text, HasSubstr("median 2.0%, 90th percentile 10.0%"));
}

TEST(PredictionTable, CsvHasTheNumbers) {
  EXPECT_THAT(Print(OutputFormat::kCsv, Some()),
              HasSubstr("7,large,-,8,16,1020,980,1060,1000,,,0.02,within,\n"));
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
