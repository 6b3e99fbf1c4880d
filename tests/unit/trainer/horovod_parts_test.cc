// Tests of the parts of native/horovod that do not communicate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "nlohmann/json.hpp"
#include "worker/trainer/errors.h"
#include "worker/trainer/strategies/horovod/autotuner.h"
#include "worker/trainer/strategies/horovod/fusion_buffer.h"
#include "worker/trainer/strategies/horovod/negotiation.h"
#include "worker/trainer/strategies/horovod/response_cache.h"
#include "worker/trainer/strategies/horovod/stall_inspector.h"
#include "worker/trainer/strategies/horovod/timeline.h"

namespace scalelab::trainer::horovod {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

const Clock::time_point kStart{};

Request Of(const std::string& name, std::vector<int64_t> sizes = {2}, at::ScalarType type = at::kFloat) {
  return {name, type, std::move(sizes)};
}

std::vector<std::string> Names(const Response& response) {
  std::vector<std::string> names;
  for (const Request& request : response.tensors) names.push_back(request.name);
  return names;
}

std::vector<std::string> Names(const std::vector<Response>& responses) {
  std::vector<std::string> names;
  for (const Response& response : responses) names.push_back(testing::PrintToString(Names(response)));
  return names;
}

TEST(Messages, SurviveEncodingAndDecoding) {
  const RequestList list{true, {Of("a", {3, 4}), Of("", {}, at::kHalf)}};
  EXPECT_EQ(DecodeRequests(Encode(list)), list);
  const std::vector<Response> responses = {{{Of("a"), Of("b")}, ""}, {{Of("c")}, "does not fit"}};
  EXPECT_EQ(DecodeResponses(Encode(responses)), responses);
}

TEST(Messages, AreRefusedIfTruncated) {
  const std::string bytes = Encode(RequestList{false, {Of("weight", {3, 4})}});
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(DecodeRequests(bytes.substr(0, length)), TrainerError) << length;
  }
  EXPECT_THROW(DecodeRequests(bytes + "x"), TrainerError);
}

TEST(Negotiation, WaitsForAllRanksAndKeepsTheOrderOfFirstSubmission) {
  Negotiation table(3);
  const std::vector<bool> open(3);
  for (const auto& [rank, name] : std::vector<std::pair<int, std::string>>{
           {0, "x"}, {1, "y"}, {2, "z"}, {0, "z"}, {1, "z"}, {2, "x"}, {1, "x"}, {0, "y"}}) {
    table.Add(rank, Of(name), kStart);
  }
  EXPECT_THAT(Names(table.TakeReady(open)), ElementsAre("{ \"x\" }", "{ \"z\" }"));
  EXPECT_THAT(table.TakeReady(open), testing::IsEmpty());
  const std::vector<Waiting> waiting = table.StillWaiting(open, kStart + seconds(7));
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].name, "y");
  EXPECT_THAT(waiting[0].missing, ElementsAre(2));
  EXPECT_EQ(waiting[0].seconds, 7);
}

TEST(Negotiation, DoesNotWaitForClosedRanks) {
  Negotiation table(3);
  table.Add(1, Of("x"), kStart);
  EXPECT_THAT(table.TakeReady({true, false, false}), testing::IsEmpty());
  EXPECT_THAT(Names(table.TakeReady({true, false, true})), ElementsAre("{ \"x\" }"));
}

TEST(Negotiation, NamesTensorRanksAndShapesThatDiffer) {
  Negotiation table(2);
  table.Add(0, Of("weight", {2, 3}), kStart);
  table.Add(1, Of("weight", {3, 2}), kStart);
  table.Add(0, Of("bias"), kStart);
  table.Add(1, Of("bias", {2}, at::kHalf), kStart);
  const std::vector<Response> ready = table.TakeReady({false, false});
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_THAT(ready[0].error, testing::AllOf(HasSubstr("\"weight\" is Float [2, 3] on rank 0"),
                                             HasSubstr("Float [3, 2] on rank 1")));
  EXPECT_THAT(ready[1].error, HasSubstr("Half [2] on rank 1"));
}

TEST(Fuse, TakesTensorsOfATypeUpToTheThresholdAndLooksAhead) {
  auto one = [](const char* name, int64_t elements, at::ScalarType type = at::kFloat) {
    return Response{{Of(name, {elements}, type)}, ""};
  };
  EXPECT_THAT(Names(Fuse({one("a", 10), one("b", 10), one("c", 10)}, 80)),
              ElementsAre("{ \"a\", \"b\" }", "{ \"c\" }"));
  EXPECT_THAT(Names(Fuse({one("a", 1), one("h", 1, at::kHalf), one("b", 1), one("i", 1, at::kHalf)}, 1000)),
              ElementsAre("{ \"a\", \"b\" }", "{ \"h\", \"i\" }"))
      << "alternating types";
  EXPECT_THAT(Names(Fuse({one("a", 10), one("big", 30), one("b", 10)}, 100)),
              ElementsAre("{ \"a\" }", "{ \"big\" }", "{ \"b\" }"))
      << "too far back to be considered";
  EXPECT_THAT(Names(Fuse({one("a", 10), one("b", 10)}, 0)), ElementsAre("{ \"a\" }", "{ \"b\" }"));
  EXPECT_THAT(Names(Fuse({one("a", 10), {{Of("wrong")}, "error"}, one("b", 10)}, 1000)),
              ElementsAre("{ \"a\", \"b\" }", "{ \"wrong\" }"));
  EXPECT_THAT(Fuse({}, 100), testing::IsEmpty());
}

TEST(ResponseCache, FindsByNameTypeAndShape) {
  using Match = ResponseCache::Match;
  ResponseCache cache(4);
  int64_t slot = 0;
  EXPECT_EQ(cache.Find(Of("a"), &slot), Match::kMiss);
  EXPECT_EQ(cache.Put(Of("a")), 0);
  EXPECT_EQ(cache.Put(Of("b")), 1);
  EXPECT_EQ(cache.Find(Of("b"), &slot), Match::kHit);
  EXPECT_EQ(slot, 1);
  EXPECT_EQ(cache.Find(Of("b", {3}), &slot), Match::kChanged);
  EXPECT_EQ(cache.Find(Of("b", {2}, at::kHalf), &slot), Match::kChanged);
  cache.Erase(0);
  EXPECT_FALSE(cache.holds(0));
  EXPECT_EQ(cache.Put(Of("c")), 0) << "a free slot is used again";
}

TEST(ResponseCache, EvictsTheLeastRecentlyUsedTensor) {
  ResponseCache cache(2);
  cache.Put(Of("a")), cache.Put(Of("b"));
  cache.Use(0);
  EXPECT_EQ(cache.Put(Of("c")), 1);
  int64_t slot = 0;
  EXPECT_EQ(cache.Find(Of("b"), &slot), ResponseCache::Match::kMiss);
  EXPECT_EQ(cache.Find(Of("a"), &slot), ResponseCache::Match::kHit);
  EXPECT_EQ(cache.slots(), 2);
  ResponseCache none(0);
  EXPECT_EQ(none.Put(Of("a")), -1);
  EXPECT_EQ(none.slots(), 0);
}

TEST(StallInspector, ReportsOncePerLimitAndNamesTheRanks) {
  StallInspector inspector(10);
  auto after = [](double seconds) { return std::vector<Waiting>{{"w", {1, 3}, seconds}}; };
  EXPECT_THAT(inspector.Inspect(after(9.9)), testing::IsEmpty());
  EXPECT_THAT(inspector.Inspect(after(12)), ElementsAre(HasSubstr("\"w\" has waited 12 s for rank 1, 3")));
  EXPECT_THAT(inspector.Inspect(after(19)), testing::IsEmpty());
  EXPECT_THAT(inspector.Inspect(after(20)), testing::SizeIs(1));
  EXPECT_THAT(inspector.Inspect({}), testing::IsEmpty());
  EXPECT_THAT(inspector.Inspect(after(11)), testing::SizeIs(1)) << "a new wait";
  EXPECT_THAT(StallInspector(0).Inspect(after(1e9)), testing::IsEmpty());
}

TEST(Autotuner, ClimbsToTheBestSettingAndStays) {
  Autotuner tuner({128 << 20, 0.001});
  auto score = [](const Autotuner::Setting& s) {
    return 100 - std::abs(std::log2(static_cast<double>(s.fusion_bytes) / (16 << 20))) -
           std::abs(std::log2(s.cycle_seconds / 0.005));
  };
  int samples = 0;
  for (; !tuner.done() && samples < 100; ++samples) tuner.Score(score(tuner.current()));
  EXPECT_EQ(tuner.current().fusion_bytes, 16 << 20);
  EXPECT_EQ(tuner.current().cycle_seconds, 0.005);
  EXPECT_LT(samples, 30);
  tuner.Score(0);
  EXPECT_EQ(tuner.current().fusion_bytes, 16 << 20);
}

TEST(FusionBuffer, UnpacksWhatItPacked) {
  FusionBuffer buffer;
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kDouble}) {
    const std::vector<at::Tensor> tensors = {at::arange(5).to(type), at::arange(64).to(type),
                                             at::arange(100).to(type)};
    const at::Tensor packed = buffer.Pack(tensors);
    EXPECT_EQ(packed.scalar_type(), type);
    packed.mul_(2);
    FusionBuffer::Unpack(packed, tensors);
    EXPECT_TRUE(tensors[0].equal(at::arange(5).to(type) * 2));
    EXPECT_TRUE(tensors[1].equal(at::arange(64).to(type) * 2));
    EXPECT_TRUE(tensors[2].equal(at::arange(100).to(type) * 2));
  }
}

TEST(Timeline, IsAChromeTrace) {
  const std::string path = testing::TempDir() + "/timeline-" + std::to_string(getpid()) + ".json";
  {
    Timeline timeline(path);
    const Clock::time_point now = Clock::now();
    timeline.Mark("CYCLE_START", now);
    timeline.Span("a \"quoted\" name", "QUEUE", now, now + std::chrono::microseconds(250));
    timeline.Span("b", "ALLREDUCE", now, now + seconds(1));
  }
  std::ifstream file(path);
  const nlohmann::json events = nlohmann::json::parse(file);
  std::filesystem::remove(path);
  int spans = 0, rows = 0;
  for (const auto& event : events) {
    rows += event["name"] == "thread_name";
    if (event["ph"] != "X") continue;
    ++spans;
    if (event["name"] == "QUEUE") {
      EXPECT_NEAR(event["dur"].get<double>(), 250, 1e-3);
    }
  }
  EXPECT_EQ(spans, 2);
  EXPECT_EQ(rows, 2);
  EXPECT_THROW(Timeline("/nowhere/at/all.json"), TrainerError);
}

}  // namespace
}  // namespace scalelab::trainer::horovod
