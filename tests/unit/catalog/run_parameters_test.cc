#include "catalog/run_parameters.h"

#include <algorithm>
#include <optional>
#include <set>

#include "catalog/lr_milestones.h"
#include "catalog/nearest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/utf8.h"
#include "scalelab/v1/run.pb.h"
#include "study/values.h"

namespace scalelab {
namespace {

using google::protobuf::FieldDescriptor;

TEST(RunParameters, AreTheFieldsOfRunSpec) {
  const auto& message = *v1::RunSpec::descriptor();
  EXPECT_EQ(static_cast<size_t>(message.field_count()), RunParameters().size());
  for (const RunParameter& parameter : RunParameters()) {
    const FieldDescriptor* field = message.FindFieldByName(std::string(parameter.name));
    ASSERT_NE(field, nullptr) << parameter.name;
    EXPECT_EQ(field->number(), parameter.number) << parameter.name;
    const bool list = parameter.type == ParameterType::kStringList;
    EXPECT_EQ(field->is_repeated(), list) << parameter.name;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        EXPECT_TRUE(list || parameter.type == ParameterType::kString) << parameter.name;
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        EXPECT_EQ(parameter.type, ParameterType::kInt32) << parameter.name;
        EXPECT_LE(parameter.max, 2147483647.0) << parameter.name;
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        EXPECT_EQ(parameter.type, ParameterType::kInt64) << parameter.name;
        EXPECT_LE(parameter.max, 9007199254740992.0) << parameter.name << ": a JSON number holds no more";
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        EXPECT_EQ(parameter.type, ParameterType::kDouble) << parameter.name;
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        EXPECT_EQ(parameter.type, ParameterType::kBool) << parameter.name;
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        EXPECT_EQ(parameter.type, ParameterType::kMap) << parameter.name;
        break;
      default:
        ADD_FAILURE() << parameter.name << " has a field of a type that parameters do not have";
    }
  }
}

TEST(RunParameters, HaveDistinctNamesAndOneLineOfHelp) {
  std::set<std::string> names;
  for (const RunParameter& parameter : RunParameters()) {
    EXPECT_TRUE(names.insert(std::string(parameter.name)).second) << parameter.name;
    EXPECT_FALSE(parameter.help.empty()) << parameter.name;
    EXPECT_EQ(parameter.help.find('\n'), absl::string_view::npos) << parameter.name;
    EXPECT_NE(parameter.help.back(), '.') << parameter.name;
    EXPECT_EQ(FindStudyKey(parameter.name), parameter.study_key ? &parameter : nullptr);
    EXPECT_FALSE(ReadingEngines(parameter).empty()) << parameter.name;
  }
  EXPECT_EQ(FindStudyKey("colour"), nullptr);
  EXPECT_EQ(FindStudyKey(""), nullptr);
}

TEST(RunParameters, HaveDefaultsThatTheyAllow) {
  for (const RunParameter& parameter : RunParameters()) {
    if (const auto* text = std::get_if<absl::string_view>(&parameter.default_value)) {
      EXPECT_EQ(parameter.type, ParameterType::kString) << parameter.name;
      const auto& choices = parameter.choices;
      EXPECT_TRUE(choices.empty() || text->empty() ||
                  std::find(choices.begin(), choices.end(), *text) != choices.end())
          << parameter.name;
    } else if (const auto* number = std::get_if<double>(&parameter.default_value)) {
      EXPECT_TRUE(IsNumber(parameter.type)) << parameter.name;
      EXPECT_TRUE(*number == 0 || (*number >= parameter.min && *number <= parameter.max)) << parameter.name;
    } else if (std::get_if<bool>(&parameter.default_value) != nullptr) {
      EXPECT_EQ(parameter.type, ParameterType::kBool) << parameter.name;
    } else {
      EXPECT_TRUE(parameter.type == ParameterType::kStringList || parameter.type == ParameterType::kMap)
          << parameter.name;
    }
  }
}

// ParseTrainingSpec and SetDefaults find a parameter by the position of its row. A specification with all
// defaults shows that they use the same positions.
TEST(RunParameters, FillASpecification) {
  v1::RunSpec spec;
  SetDefaults(&spec);
  EXPECT_EQ(spec.engine(), "native/ddp");
  EXPECT_EQ(spec.bucket_cap_mib(), 25);
  EXPECT_EQ(spec.momentum(), 0.9);
  EXPECT_TRUE(spec.decay_norm());
  EXPECT_EQ(spec.comm_timeout_s(), 600);
  for (const RunParameter& parameter : RunParameters()) {
    if (parameter.type == ParameterType::kStringList || DefaultText(parameter).empty()) continue;
    EXPECT_EQ(FieldText(parameter, spec), DefaultText(parameter)) << parameter.name;
  }
}

TEST(RunParameters, AreShownAsText) {
  const RunParameter& cap = *FindStudyKey("bucket_cap_mib");
  EXPECT_EQ(DefaultText(cap), "25");
  EXPECT_EQ(ValuesText(cap), "1 to 4096");
  EXPECT_EQ(
      EnginesText(cap),
      "native/ddp, native/serial, native/zero1, native/zero2, native/zero3, pytorch/ddp, pytorch/zero1, "
      "pytorch/powersgd, keras/pytorch");
  EXPECT_EQ(ValuesText(*FindStudyKey("last_batch")), "drop, keep");
  EXPECT_EQ(DefaultText(*FindStudyKey("image_size")), "") << "zero means that it follows from the data set";
  EXPECT_EQ(EnginesText(*FindStudyKey("momentum")), "all");
}

TEST(LrMilestones, AreEpochsInAscendingOrder) {
  using testing::ElementsAre;
  using testing::Optional;
  EXPECT_THAT(ParseLrMilestones("30,60,80"), Optional(ElementsAre(30, 60, 80)));
  EXPECT_THAT(ParseLrMilestones("2.5"), Optional(ElementsAre(2.5)));
  EXPECT_THAT(ParseLrMilestones(""), Optional(ElementsAre())) << "not set";
  for (const char* text : {"30,60,", ",30", "30;60", "30, 60", "60,30", "30,30", "0,30", "-1", "+1", "1.",
                           ".5", "1.2.3", "1e1", "inf", "nan", "0x10", "30,sixty"}) {
    EXPECT_EQ(ParseLrMilestones(text), std::nullopt) << text;
  }
}

TEST(LrMilestones, MustSuitTheRun) {
  EXPECT_EQ(LrMilestonesMistake("", "cosine", 1), "");
  EXPECT_EQ(LrMilestonesMistake("30,60,80", "step", 90), "");
  EXPECT_EQ(
      LrMilestonesMistake("30;60", "step", 90),
      "lr_milestones must be a text with epochs greater than 0 in ascending order without spaces, such as "
      "\"30,60,80\", not '30;60'");
  EXPECT_EQ(
      LrMilestonesMistake("30", "cosine", 90),
      "lr_milestones is for lr_schedule step, not cosine; set lr_schedule: step, or remove lr_milestones");
  EXPECT_EQ(LrMilestonesMistake("30,60,80", "step", 80),
            "the last of lr_milestones, 80, must be less than epochs, 80; set more epochs, or earlier "
            "milestones");
}

TEST(Nearest, FindsSlips) {
  EXPECT_EQ(Nearest("resnet21", {"resnet20", "resnet32"}), "resnet20");
  EXPECT_EQ(Nearest("modle", {"engine", "model"}), "model") << "swapped letters are one slip";
  EXPECT_EQ(Nearest("matrx", {"measure", "matrix"}), "matrix");
  EXPECT_EQ(Nearest("ResNet20", {"resnet32", "resnet20"}), "resnet20") << "case does not count";
  EXPECT_EQ(Nearest("batch-per-rank", {"global_batch", "batch_per_rank"}), "batch_per_rank");
  EXPECT_EQ(Nearest("resnet", {"resnet20"}), "resnet20");
}

TEST(Nearest, PrefersTheFirstOfEqualOnes) {
  EXPECT_EQ(Nearest("resnet2", {"resnet32", "resnet20"}), "resnet32");
}

TEST(Nearest, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(Nearest("vgg16", {"resnet20", "resnet32"}), "");
  EXPECT_EQ(Nearest("abcd", {"abef"}), "") << "two of four letters are more than a third";
  EXPECT_EQ(Nearest("", {"a"}), "");
  EXPECT_EQ(Nearest("a", {}), "");
  EXPECT_EQ(Nearest(std::string(1'000'000, 'a'), {"aaa"}), "");
}

TEST(Values, AreShownShort) {
  EXPECT_EQ(ShowNumber(0.1), "0.1");
  EXPECT_EQ(ShowNumber(-3), "-3");
  EXPECT_EQ(ShowNumber(1e6), "1000000");
  EXPECT_EQ(ShowNumber(1e-12), "1e-12");
  EXPECT_EQ(ShowNumber(4e15), "4000000000000000") << "programs read it as a whole number";
  EXPECT_EQ(Quote("a\nb"), "'a?b'");
  EXPECT_EQ(Quote(std::string(100, 'x')), "'" + std::string(60, 'x') + "...'");
  std::string cut(59, 'x');
  cut += "\xC3\xA4z";
  EXPECT_EQ(Quote(cut), "'" + std::string(59, 'x') + "...'") << "not half a letter";
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(WithCommas(100), "100");
  EXPECT_EQ(WithCommas(-1000), "-1,000");
}

TEST(Utf8, CutsBetweenCharacters) {
  const std::string text = "a\xC3\xA4\xF0\x9F\x98\x80";
  const size_t ends[] = {0, 1, 1, 3, 3, 3, 3, 7, 7};
  for (size_t limit = 0; limit < 9; ++limit) EXPECT_EQ(CutUtf8(text, limit).size(), ends[limit]) << limit;
}

TEST(Utf8, ReplacesBytesThatAreNoCharacters) {
  EXPECT_EQ(ValidUtf8("a\xC3\xA4"), "a\xC3\xA4");
  EXPECT_EQ(ValidUtf8("\xFFx\xC3"), "?x?");
  EXPECT_EQ(ValidUtf8(""), "");
}

TEST(Utf8, TellsCharactersFromOtherBytes) {
  EXPECT_EQ(Utf8Length("a", 0), 1u);
  EXPECT_EQ(Utf8Length("x\xC3\xA4", 1), 2u);
  EXPECT_EQ(Utf8Length("\xE2\x82\xAC", 0), 3u);
  EXPECT_EQ(Utf8Length("\xF0\x9F\x98\x80", 0), 4u);
  for (const char* bad : {"", "\x80", "\xC3", "\xC3z", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xE2\x82",
                          "\xF4\x90\x80\x80", "\xF0\x80\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(Utf8Length(bad, 0), 0u) << testing::PrintToString(bad);
  }
}

}  // namespace
}  // namespace scalelab
