#include "events/event_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"

namespace scalelab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::EventBatch Parse(const std::vector<std::string>& lines) {
  BatchBuilder builder;
  for (size_t i = 0; i < lines.size(); ++i) builder.Add(lines[i], static_cast<int64_t>(i));
  return builder.Take();
}

std::string Wrong(const std::string& line) {
  const v1::EventBatch batch = Parse({line});
  EXPECT_EQ(batch.columns_size() + batch.events_size(), 0) << batch.ShortDebugString();
  return batch.malformed_size() == 1 ? batch.malformed(0).reason() : "taken";
}

TEST(BatchBuilder, PutsMetricsOfStepsIntoColumns) {
  const auto batch = Parse({R"({"time":1.5,"event":"step","epoch":0,"step":12,"metrics":{"a":0.5,"b":2}})",
                            R"({"time":2.5,"event":"step","epoch":0,"step":13,"metrics":{"b":-3e2,"a":0}})"});
  ASSERT_EQ(batch.columns_size(), 2);
  EXPECT_EQ(batch.columns(0).key(), "a");
  EXPECT_THAT(batch.columns(0).line(), ElementsAre(0, 1));
  EXPECT_THAT(batch.columns(0).step(), ElementsAre(12, 13));
  EXPECT_THAT(batch.columns(0).time(), ElementsAre(1.5, 2.5));
  EXPECT_THAT(batch.columns(0).value(), ElementsAre(0.5, 0));
  EXPECT_EQ(batch.columns(1).key(), "b");
  EXPECT_THAT(batch.columns(1).value(), ElementsAre(2, -300));
  EXPECT_EQ(batch.events_size(), 0);
}

TEST(BatchBuilder, GivesEveryKindOfLineItsStep) {
  const auto batch = Parse({R"({"time":1,"event":"start","metrics":{"m":1}})",
                            R"({"time":2,"event":"step","step":5,"metrics":{"m":2}})",
                            R"({"time":3,"event":"epoch","epoch":4,"metrics":{"m":3}})",
                            R"({"time":4,"event":"finish","metrics":{"m":4}})"});
  ASSERT_EQ(batch.columns_size(), 1);
  EXPECT_THAT(batch.columns(0).step(), ElementsAre(-1, 5, 4, -1));
  EXPECT_THAT(batch.columns(0).value(), ElementsAre(1, 2, 3, 4));
}

TEST(BatchBuilder, KeepsWhatEventsSayBesideMetrics) {
  const auto batch =
      Parse({R"({"time":1,"event":"start","framework":"native","world_size":2})",
             R"({"time":2,"event":"epoch","epoch":3,"metrics":{"eval/accuracy":0.4}})",
             R"({"time":3,"event":"finish","parameter_hash":"9f86"})",
             R"({"time":4,"event":"error","message":"CUDA: \"out\"","kind":"out_of_memory"})"});
  ASSERT_EQ(batch.events_size(), 4);
  EXPECT_EQ(batch.events(0).kind(), v1::Event::START);
  EXPECT_EQ(batch.events(0).details(), R"({"framework":"native","world_size":2})");
  EXPECT_EQ(batch.events(1).epoch(), 3);
  EXPECT_EQ(batch.events(1).line(), 1);
  EXPECT_EQ(batch.events(1).metrics().at("eval/accuracy"), 0.4);
  EXPECT_EQ(batch.events(2).parameter_hash(), "9f86");
  EXPECT_EQ(batch.events(3).message(), "CUDA: \"out\"");
  EXPECT_EQ(batch.events(3).error_kind(), "out_of_memory");
  EXPECT_EQ(batch.events(3).time(), 4);
}

TEST(BatchBuilder, ReadsCheckpointsAndWhereAnAttemptContinues) {
  BatchBuilder builder;
  builder.Add(R"({"time":1,"event":"start","resumed_step":120})", 0);
  builder.Add(R"({"time":2,"event":"checkpoint","step":150,"metrics":{"checkpoint/seconds":0.5}})", 1);
  builder.Add(R"({"time":3,"event":"checkpoint"})", 2);
  builder.Add(R"({"time":3,"event":"start","resumed_step":-1})", 3);
  const v1::EventBatch batch = builder.Take();
  ASSERT_EQ(batch.events_size(), 2);
  EXPECT_EQ(batch.events(0).step(), 120);
  EXPECT_EQ(batch.events(1).kind(), v1::Event::CHECKPOINT);
  EXPECT_EQ(batch.events(1).step(), 150);
  ASSERT_EQ(batch.columns_size(), 1);
  EXPECT_EQ(batch.columns(0).step(0), 150);
  ASSERT_EQ(batch.malformed_size(), 2);
  EXPECT_EQ(batch.malformed(0).reason(), "has no \"step\"");
  EXPECT_EQ(batch.malformed(1).reason(), "\"resumed_step\" is negative");
}

TEST(BatchBuilder, StoresNamesOfNumbersThatAreNotFiniteAsNan) {
  for (const char* value : {"\"NaN\"", "\"Infinity\"", "\"-Infinity\""}) {
    for (const char* more : {"", ",\"unknown\":[]"}) {  // by the fast scanner and by the complete parser
      const auto batch = Parse(
          {absl::StrCat(R"({"time":1,"event":"step","step":1,"metrics":{"a":)", value, "}", more, "}")});
      ASSERT_EQ(batch.columns_size(), 1) << value << more;
      EXPECT_TRUE(std::isnan(batch.columns(0).value(0)));
    }
  }
}

TEST(BatchBuilder, TakesTheLastOfANameThatStandsTwiceInALine) {
  const auto batch = Parse({R"({"time":1,"event":"step","step":1,"metrics":{"a":1,"b":5,"a":2}})"});
  ASSERT_EQ(batch.columns_size(), 2);
  EXPECT_THAT(batch.columns(0).value(), ElementsAre(2));
}

TEST(BatchBuilder, SaysWhatIsWrongWithALine) {
  EXPECT_EQ(Wrong("hello"), "is not JSON");
  EXPECT_EQ(Wrong(""), "is not JSON");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"finish","metrics":{"run/throughput":1e999}})"),
            "has a number beyond 1.8e308");
  EXPECT_EQ(Wrong("[1]"), "is not a JSON object");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"step","step":1}x)"), "is not JSON");
  EXPECT_EQ(Wrong(R"({"event":"step","step":1})"), "has no \"time\" that is a number");
  EXPECT_EQ(Wrong(R"({"time":1,"step":1})"), "has no \"event\"");
  EXPECT_THAT(Wrong(R"({"time":1,"event":"stop"})"), HasSubstr("\"event\" is \"stop\""));
  EXPECT_EQ(Wrong(R"({"time":1,"event":"step"})"), "has no \"step\"");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"step","step":-1})"), "\"step\" is negative");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"step","step":1.5})"), "\"step\" is not a whole number");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"epoch","epoch":3000000000})"), "\"epoch\" is not a whole number");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"step","step":1,"metrics":{"a":1,"b":true}})"),
            "metric \"b\" is not a number");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"step","step":1,"metrics":{"a":"inf"}})"),
            "metric \"a\" is not a number");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"step","step":1,"metrics":[]})"), "\"metrics\" is not an object");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"error","message":7})"), "\"message\" is not a string");
  EXPECT_EQ(Wrong("{\"time\":1,\"event\":\"start\",\"who\":\"\xff\"}"), "is not JSON");
  EXPECT_EQ(Wrong(R"({"time":1,"event":"step","step":1,"metrics":{"":1}})"),
            "a metric's name is empty or longer than 256 bytes");
}

TEST(BatchBuilder, DoesNotTakeNumbersThatAreNoJson) {
  for (const char* number : {"01", "1.", ".5", "+1", "nan", "inf", "-", "0x10", "1e"}) {
    EXPECT_EQ(Wrong(absl::StrCat(R"({"time":1,"event":"step","step":1,"metrics":{"a":)", number, "}}")),
              "is not JSON")
        << number;
  }
}

TEST(BatchBuilder, CutsTextBetweenCharacters) {
  const auto parses = [](const std::string& line) {
    v1::EventBatch copy;
    return copy.ParseFromString(Parse({line}).SerializeAsString());  // fails if a string is not UTF-8
  };
  for (const std::string character : {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (int before = 36; before < 62; ++before) {
      const std::string text = std::string(before, 'a') + character + "b";
      EXPECT_TRUE(parses(R"({"time":1,"event":"step","step":1,"metrics":{")" + text + "\":null}}")) << text;
      EXPECT_TRUE(parses(R"({"time":1,"event":")" + text + "\"}")) << text;
    }
  }
}

TEST(BatchBuilder, SurvivesDeepNesting) {
  EXPECT_EQ(Wrong("{\"time\":1,\"event\":\"start\",\"x\":" + std::string(30000, '[') +
                  std::string(30000, ']') + "}"),
            "is nested too deeply");
}

TEST(BatchBuilder, AllowsAsLongALineAsIsPromised) {
  const std::string begin = R"({"time":1,"event":"error","message":")", end = "\"}";
  const std::string fits = begin + std::string(kMaxLineBytes - begin.size() - end.size(), 'x') + end;
  EXPECT_EQ(Parse({fits}).events_size(), 1);
  EXPECT_EQ(Wrong(fits + " "), "longer than 64 KiB");
}

TEST(BatchBuilder, IsUrgentWithEpochFinishAndErrorOnly) {
  for (const auto& [name, urgent] : std::vector<std::pair<std::string, bool>>{
           {"start", false}, {"step", false}, {"epoch", true}, {"finish", true}, {"error", true}}) {
    BatchBuilder builder;
    builder.Add(R"({"time":1,"epoch":0,"step":0,"event":")" + name + "\"}", 0);
    EXPECT_EQ(builder.urgent(), urgent) << name;
  }
}

TEST(BatchBuilder, NeverSaysItIsSmallerThanItIs) {
  for (const char* line : {R"({"time":1,"event":"step","step":9000000000000,"metrics":{"a":1,"b":2}})", "x",
                           R"({"time":1,"event":"finish","metrics":{"a":1,"b":2},"parameter_hash":"x"})",
                           R"({"time":1,"event":"start","a":{"b":[1,2,3]}})"}) {
    BatchBuilder builder;
    for (int i = 0; i < 1000; ++i) builder.Add(line, int64_t{1} << 40);
    const size_t bytes = builder.bytes();
    EXPECT_GE(bytes, builder.Take().ByteSizeLong()) << line;
  }
}

}  // namespace
}  // namespace scalelab
