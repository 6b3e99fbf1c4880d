#include "worker/own_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace scalelab::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

v1::RunSpec Spec() {
  v1::RunSpec spec;
  spec.set_engine("custom");
  spec.set_learning_rate(0.1);
  spec.set_seed(9007199254740993);
  spec.set_evaluate(true);
  (*spec.mutable_params()->mutable_fields())["dropout"].set_number_value(0.5);
  (*spec.mutable_params()->mutable_fields())["layers"].set_number_value(12);
  (*spec.mutable_params()->mutable_fields())["act"].set_string_value("re lu");
  (*spec.mutable_params()->mutable_fields())["fast"].set_bool_value(true);
  (*spec.mutable_env()->mutable_fields())["NCCL_ALGO"].set_string_value("Ring");
  return spec;
}

TEST(SpecJson, HasOwnParametersAsAnObject) {
  const auto json = nlohmann::json::parse(SpecJson(Spec()));
  EXPECT_EQ(json["params"].dump(), R"({"act":"re lu","dropout":0.5,"fast":true,"layers":12})");
  EXPECT_EQ(json["env"].dump(), R"({"NCCL_ALGO":"Ring"})");
  EXPECT_EQ(json["extract"].dump(), "{}");
  EXPECT_EQ(json["learning_rate"], 0.1);
  EXPECT_EQ(SpecJson(Spec()), SpecJson(Spec()));
}

TEST(ExpandedCommand, HasTheValuesOfTheRun) {
  v1::RunSpec spec = Spec();
  for (const char* word :
       {"./train", "--lr={learning_rate}", "--d={params.dropout}", "{params.layers}{evaluate}", "{seed}",
        "{env.NCCL_ALGO}", "{params.act}", "{{seed}}", "${HOME}"}) {
    spec.add_command(word);
  }
  const auto command = ExpandedCommand(spec);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(*command, ElementsAre("./train", "--lr=0.1", "--d=0.5", "12true", "9007199254740993", "Ring",
                                    "re lu", "{seed}", "${HOME}"));
  spec.add_command("{params.none}");
  EXPECT_THAT(std::string(ExpandedCommand(spec).status().message()), HasSubstr("'params.none'"));
}

TEST(OwnVariables, HoldParametersAndTheEnvironment) {
  EXPECT_THAT(OwnVariables(Spec()),
              ElementsAre(Pair("NCCL_ALGO", "Ring"), Pair("SCALELAB_PARAM_ACT", "re lu"),
                          Pair("SCALELAB_PARAM_DROPOUT", "0.5"), Pair("SCALELAB_PARAM_FAST", "true"),
                          Pair("SCALELAB_PARAM_LAYERS", "12")));
}

}  // namespace
}  // namespace scalelab::worker
