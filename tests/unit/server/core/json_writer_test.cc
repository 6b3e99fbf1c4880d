#include "server/cells/json_writer.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "server/cells/message_json.h"

namespace scalelab::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Value;

std::string ByProtobuf(const Message& message, bool full) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = full;
  std::string json;
  return google::protobuf::util::MessageToJsonString(message, &json, options).ok() ? json : "{}";
}

// Makes messages with any values.
class AnyMessage {
 public:
  void Fill(Message* message, double share, int depth = 0) {
    if (auto* object = dynamic_cast<google::protobuf::Struct*>(message)) {
      for (size_t i = random_() % 4; i > 0; --i) Fill(&(*object->mutable_fields())[Text()], depth);
      return;
    }
    if (auto* value = dynamic_cast<Value*>(message)) return Fill(value, depth);
    for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = message->GetDescriptor()->field(i);
      if (field->is_map() || std::uniform_real_distribution<double>(0, 1)(random_) > share) continue;
      for (size_t count = field->is_repeated() ? random_() % 3 : 1; count > 0; --count)
        Set(message, field, share, depth);
    }
  }

 private:
  std::string Text() {
    static const char* const texts[] = {"native/ddp", "resnet20", "a b",    "",    "it's", "$HOME/&;",
                                        "\x7f",       "\"q\"",    "back\\", "<b>", "ü",    "tab\t"};
    return texts[random_() % (random_() % 8 == 0 ? std::size(texts) : 6)];
  }
  double Number() {
    const double numbers[] = {0,
                              -0.0,
                              1,
                              0.1,
                              1e15,
                              1e20,
                              123456789012345678.,
                              5e-324,
                              std::bit_cast<double>(random_()),
                              static_cast<double>(static_cast<int64_t>(random_())),
                              static_cast<double>(random_() % 1000) / 8};
    return numbers[random_() % std::size(numbers)];
  }
  void Fill(Value* value, int depth) {
    switch (random_() % (depth > 2 ? 4 : 6)) {
      case 0:
        return value->set_number_value(Number());
      case 1:
        return value->set_string_value(Text());
      case 2:
        return value->set_bool_value(random_() % 2 == 0);
      case 3:
        return value->set_null_value(google::protobuf::NULL_VALUE);
      case 4:
        for (size_t i = random_() % 3; i > 0; --i) Fill(value->mutable_list_value()->add_values(), depth + 1);
        return;
      default:
        for (size_t i = random_() % 3; i > 0; --i)
          Fill(&(*value->mutable_struct_value()->mutable_fields())[Text()], depth + 1);
    }
  }
  void Set(Message* message, const FieldDescriptor* field, double share, int depth) {
    const google::protobuf::Reflection& r = *message->GetReflection();
    const bool repeated = field->is_repeated();
    const auto number = static_cast<int64_t>(random_() % 3 == 0 ? random_() : random_() % 100);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return repeated ? r.AddString(message, field, Text()) : r.SetString(message, field, Text());
      case FieldDescriptor::CPPTYPE_BOOL:
        return repeated ? r.AddBool(message, field, number % 2 == 0)
                        : r.SetBool(message, field, number % 2 == 0);
      case FieldDescriptor::CPPTYPE_INT32: {
        const auto small = static_cast<int32_t>(number);
        return repeated ? r.AddInt32(message, field, small) : r.SetInt32(message, field, small);
      }
      case FieldDescriptor::CPPTYPE_INT64:
        return repeated ? r.AddInt64(message, field, number) : r.SetInt64(message, field, number);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return repeated ? r.AddDouble(message, field, Number()) : r.SetDouble(message, field, Number());
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int value = static_cast<int>(random_() % 5);
        return repeated ? r.AddEnumValue(message, field, value) : r.SetEnumValue(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth < 4)
          Fill(repeated ? r.AddMessage(message, field) : r.MutableMessage(message, field), share / 2,
               depth + 1);
        return;
      default:
        return;
    }
  }

  std::mt19937_64 random_{1};
};

TEST(JsonWriter, WritesWhatProtobufWrites) {
  AnyMessage any;
  int written = 0, written_full = 0;
  for (int round = 0; round < 6000; ++round) {
    v1::RunSpec run;
    v1::StudySpec study;
    Message& message = round % 2 == 0 ? static_cast<Message&>(run) : study;
    any.Fill(&message, 0.02 + 0.1 * (round % 9));
    if (const auto json = WriteJson(message)) {
      ++written;
      ASSERT_EQ(*json, nlohmann::json::parse(ByProtobuf(message, false)).dump());
    }
    if (const auto json = WriteFullJson(message)) {
      ++written_full;
      ASSERT_EQ(*json, ByProtobuf(message, true));
    }
  }
  EXPECT_GT(written, 1000);
  EXPECT_GT(written_full, 500);
}

TEST(JsonWriter, WritesCommonSpecificationsItself) {
  v1::RunSpec run;
  run.set_model("resnet20");
  run.set_learning_rate(0.1);
  run.add_command("python3");
  EXPECT_TRUE(WriteFullJson(run).has_value());
  v1::StudySpec study;
  study.set_study("scaling of resnet");
  (*study.mutable_fixed()->mutable_fields())["ranks"].set_number_value(4);
  study.mutable_scaling()->set_mode(v1::Scaling::WEAK);
  EXPECT_EQ(WriteJson(study),
            R"({"fixed":{"ranks":4},"scaling":{"mode":"WEAK"},"study":"scaling of resnet"})");
}

TEST(JsonWriter, LeavesOtherCharactersAndKindsToProtobuf) {
  v1::StudySpec study;
  study.set_study("ü<");
  EXPECT_FALSE(WriteJson(study).has_value());
  EXPECT_EQ(ToJson(study), R"({"study":"ü<"})");
  study.set_study("s");
  (*study.mutable_slurm()->mutable_sbatch_options())["qos"] = "high";
  EXPECT_FALSE(WriteJson(study).has_value());
  EXPECT_EQ(ToJson(study), R"({"slurm":{"sbatch_options":{"qos":"high"}},"study":"s"})");
}

}  // namespace
}  // namespace scalelab::server
