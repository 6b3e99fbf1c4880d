#include "server/core/outcome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace scalelab::server {
namespace {

using testing::HasSubstr;

RankState Rank(int rank, bool finished, const std::string& hash = "h") {
  RankState state;
  state.stream.rank = rank;
  state.stream.finished = finished;
  state.stream.parameter_hash = hash;
  return state;
}

v1::SynchronizeRequest::AttemptStatus Exit(int status) {
  v1::SynchronizeRequest::AttemptStatus s;
  s.set_exit_status(status);
  return s;
}

TEST(Judge, AllRanksFinishedWithEqualParametersIsSuccess) {
  const Outcome outcome = Judge({Rank(0, true), Rank(1, true)}, Exit(0));
  EXPECT_EQ(outcome.state, db::AttemptState::kSucceeded);
  EXPECT_EQ(outcome.parameter_hash, "h");
}

TEST(Judge, OutOfMemoryOfOneRankExplainsTheDeathOfTheOthers) {
  std::vector<RankState> ranks = {Rank(0, false), Rank(1, false)};
  ranks[1].stream.error_message = "no memory for 3 GiB";
  ranks[1].stream.error_kind = "out_of_memory";
  auto exit = Exit(137);
  exit.set_cause(v1::Attempt::RANK_KILLED);
  const Outcome outcome = Judge(ranks, exit);
  EXPECT_EQ(outcome.cause, db::Cause::kOutOfMemory);
  EXPECT_THAT(outcome.message, HasSubstr("rank 1: no memory"));
}

TEST(Judge, AKilledRankExplainsTheErrorsOfItsPeers) {
  std::vector<RankState> ranks = {Rank(0, false), Rank(1, false)};
  ranks[0].stream.error_message = "peer is gone";
  auto exit = Exit(137);
  exit.set_cause(v1::Attempt::RANK_KILLED);
  EXPECT_EQ(Judge(ranks, exit).cause, db::Cause::kRankKilled);
}

TEST(Judge, AnErrorThatARankWroteIsTheMessage) {
  std::vector<RankState> ranks = {Rank(0, false)};
  ranks[0].stream.error_message = "data_batch_1.bin is short";
  const Outcome outcome = Judge(ranks, Exit(1));
  EXPECT_EQ(outcome.cause, db::Cause::kTrainerError);
  EXPECT_THAT(outcome.message, HasSubstr("data_batch_1.bin is short"));
}

TEST(Judge, ASignalWithoutAnotherReasonKilledARank) {
  EXPECT_EQ(Judge({Rank(0, false)}, Exit(139)).cause, db::Cause::kRankKilled);
}

TEST(Fingerprint, DependsOnHardwareAndSoftwareNotOnTheOrderOfNodes) {
  v1::NodeInfo a, b;
  a.set_cpu_model("x");
  b.set_cpu_model("y");
  EXPECT_EQ(Fingerprint({a, b}), Fingerprint({b, a}));
  EXPECT_EQ(Fingerprint({a, a}), Fingerprint({a}));
  EXPECT_NE(Fingerprint({a}), Fingerprint({b}));
  v1::NodeInfo newer = a;
  (*newer.mutable_software())["libtorch"] = "2";
  EXPECT_NE(Fingerprint({a}), Fingerprint({newer}));
}

TEST(Retries, WhatIsListedAndByDefaultOnlyWhatIsNotTheTrainersFault) {
  v1::Retry retry;
  EXPECT_TRUE(Retries(retry, db::Cause::kNodeFail));
  EXPECT_TRUE(Retries(retry, db::Cause::kRankKilled));
  EXPECT_FALSE(Retries(retry, db::Cause::kTrainerError));
  EXPECT_FALSE(Retries(retry, db::Cause::kOutOfMemory));
  retry.add_on("out_of_memory");
  EXPECT_TRUE(Retries(retry, db::Cause::kOutOfMemory));
  EXPECT_FALSE(Retries(retry, db::Cause::kNodeFail));
}

}  // namespace
}  // namespace scalelab::server
