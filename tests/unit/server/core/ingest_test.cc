#include "server/core/ingest.h"

#include <gtest/gtest.h>

namespace scalelab::server {
namespace {

v1::EventBatch Batch() {
  v1::EventBatch batch;
  batch.set_token("t");
  batch.set_end_position(100);
  batch.set_end_line(3);
  auto* column = batch.add_columns();
  column->set_key("train/loss");
  for (int i = 0; i < 3; ++i) {
    column->add_line(i);
    column->add_step(i);
    column->add_time(i);
    column->add_value(2.0 - i);
  }
  return batch;
}

TEST(ParseBatch, TakesPointsAndProgress) {
  const auto parsed = ParseBatch(Batch());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->append.columns.size(), 1u);
  EXPECT_EQ(parsed->last_loss, 0.0);
}

TEST(ParseBatch, TakesTheDurationsOfTheStepsOfRankZero) {
  v1::EventBatch batch = Batch();
  batch.mutable_columns(0)->set_key("step/total_s");
  const auto parsed = ParseBatch(batch);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->steps.size(), 2u) << "the last step took no time";
  EXPECT_EQ(parsed->steps[1].first, 1);
  EXPECT_EQ(parsed->steps[1].second, StepTimes::BucketOf(1.0));
  batch.set_rank(1);
  EXPECT_TRUE(ParseBatch(batch)->steps.empty());
}

TEST(ParseBatch, AFinishEventBringsHashAndMetrics) {
  v1::EventBatch batch = Batch();
  auto* event = batch.add_events();
  event->set_kind(v1::Event::FINISH);
  event->set_parameter_hash("abc");
  (*event->mutable_metrics())["run/throughput"] = 7;
  const auto parsed = ParseBatch(batch);
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->append.finished);
  EXPECT_EQ(parsed->append.parameter_hash, "abc");
  EXPECT_EQ(parsed->finish_metrics->at("run/throughput"), 7);
}

TEST(ParseBatch, AStartEventTellsTheTotalSteps) {
  v1::EventBatch batch = Batch();
  auto* event = batch.add_events();
  event->set_kind(v1::Event::START);
  event->set_details(R"({"total_steps": 32})");
  EXPECT_EQ(ParseBatch(batch)->total_steps, 32);
  event->set_details("not json");
  EXPECT_EQ(ParseBatch(batch)->total_steps, std::nullopt);
}

TEST(ParseBatch, TakesTheLastCheckpointAndWhereTheAttemptContinues) {
  v1::EventBatch batch = Batch();
  EXPECT_EQ(ParseBatch(batch)->resumed_step, std::nullopt);
  batch.add_events()->set_kind(v1::Event::START);
  batch.mutable_events(0)->set_step(5);
  for (const int64_t step : {10, 20}) {
    auto* event = batch.add_events();
    event->set_kind(v1::Event::CHECKPOINT);
    event->set_step(step);
  }
  EXPECT_EQ(ParseBatch(batch)->resumed_step, 5);
  EXPECT_EQ(ParseBatch(batch)->checkpoint_step, 20);
}

TEST(ParseBatch, TheFirstOfTwoErrorsCounts) {
  v1::EventBatch batch = Batch();
  for (const char* kind : {"out_of_memory", "communication"}) {
    auto* event = batch.add_events();
    event->set_kind(v1::Event::ERROR);
    event->set_error_kind(kind);
    event->set_message(kind);
  }
  EXPECT_EQ(ParseBatch(batch)->append.error_kind, "out_of_memory");
  EXPECT_EQ(ParseBatch(batch)->append.error_message, "out_of_memory");
}

TEST(ParseBatch, MalformedLinesAreNumberedFromOne) {
  v1::EventBatch batch = Batch();
  for (const int line : {1, 2}) {
    auto* malformed = batch.add_malformed();
    malformed->set_line(line);
    malformed->set_reason("is not JSON");
  }
  EXPECT_EQ(ParseBatch(batch)->append.malformed, 2);
  EXPECT_EQ(ParseBatch(batch)->append.first_malformed, "line 2: is not JSON");
}

TEST(ParseBatch, RefusesWhatTheStoreWouldRefuse) {
  const auto refused = [](auto change) {
    v1::EventBatch batch = Batch();
    change(batch);
    return absl::IsInvalidArgument(ParseBatch(batch).status());
  };
  EXPECT_TRUE(refused([](v1::EventBatch& b) { b.set_begin_position(200); }));
  EXPECT_TRUE(refused([](v1::EventBatch& b) { b.mutable_columns(0)->add_value(1); }));
  EXPECT_TRUE(refused([](v1::EventBatch& b) { b.mutable_columns(0)->set_line(1, 0); }));
  EXPECT_TRUE(refused([](v1::EventBatch& b) { b.mutable_columns(0)->set_line(2, 3); }));
  EXPECT_TRUE(refused([](v1::EventBatch& b) { *b.add_columns() = b.columns(0); }));
  EXPECT_TRUE(refused([](v1::EventBatch& b) { b.mutable_columns(0)->clear_key(); }));
}

}  // namespace
}  // namespace scalelab::server
