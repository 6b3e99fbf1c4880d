#include "catalog/study_keys.h"

#include <set>

#include "gtest/gtest.h"
#include "study/values.h"
#include "proto/utf8.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab {
namespace {

using google::protobuf::FieldDescriptor;

TEST(StudyKeys, AreFieldsOfRunSpecWithTheSameType) {
  for (const StudyKey& key : StudyKeys()) {
    const FieldDescriptor* field = v1::RunSpec::descriptor()->FindFieldByName(std::string(key.name));
    ASSERT_NE(field, nullptr) << key.name;
    bool list = key.type == KeyType::kStringList;
    EXPECT_EQ(field->is_repeated(), list) << key.name;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        EXPECT_TRUE(list || key.type == KeyType::kString) << key.name;
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        EXPECT_LE(key.max, 2147483647.0) << key.name;
        [[fallthrough]];
      case FieldDescriptor::CPPTYPE_INT64:
        EXPECT_EQ(key.type, KeyType::kInt) << key.name;
        EXPECT_LE(key.max, 9007199254740992.0) << key.name << ": a JSON number holds no more";
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        EXPECT_EQ(key.type, KeyType::kDouble) << key.name;
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        EXPECT_EQ(key.type, KeyType::kBool) << key.name;
        break;
      default:
        ADD_FAILURE() << key.name << " has a field of a type that keys do not have";
    }
  }
}

TEST(StudyKeys, HaveDistinctNamesAndOneLineOfHelp) {
  std::set<std::string> names;
  for (const StudyKey& key : StudyKeys()) {
    EXPECT_TRUE(names.insert(std::string(key.name)).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_EQ(key.help.find('\n'), absl::string_view::npos) << key.name;
    EXPECT_EQ(FindStudyKey(key.name), &key);
  }
  EXPECT_EQ(FindStudyKey("colour"), nullptr);
  EXPECT_EQ(FindStudyKey(""), nullptr);
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
  EXPECT_EQ(Quote("a\nb"), "'a?b'");
  EXPECT_EQ(Quote(std::string(100, 'x')), "'" + std::string(60, 'x') + "...'");
  std::string cut(59, 'x');
  cut += "\xC3\xA4z";
  EXPECT_EQ(Quote(cut), "'" + std::string(59, 'x') + "...'") << "not half a letter";
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(WithCommas(100), "100");
  EXPECT_EQ(WithCommas(-1000), "-1,000");
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
