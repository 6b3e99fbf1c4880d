// Checks the API's conventions, and compares it with the committed list of released names.
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"

namespace scalelab {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using google::protobuf::SourceLocation;

bool update_golden = false;

// All definitions of package scalelab.v1.
struct Api {
  std::vector<const Descriptor*> messages;
  std::vector<const FieldDescriptor*> fields;
  std::vector<const EnumDescriptor*> enums;
  std::vector<const EnumValueDescriptor*> values;
  std::vector<const ServiceDescriptor*> services;
  std::vector<const MethodDescriptor*> methods;

  void AddEnum(const EnumDescriptor* type) {
    enums.push_back(type);
    for (int i = 0; i < type->value_count(); ++i) values.push_back(type->value(i));
  }
  void AddMessage(const Descriptor* type) {
    if (type->options().map_entry()) return;  // made by protoc
    messages.push_back(type);
    for (int i = 0; i < type->field_count(); ++i) fields.push_back(type->field(i));
    for (int i = 0; i < type->enum_type_count(); ++i) AddEnum(type->enum_type(i));
    for (int i = 0; i < type->nested_type_count(); ++i) AddMessage(type->nested_type(i));
  }
  void AddFile(const FileDescriptor* file) {
    for (int i = 0; i < file->message_type_count(); ++i) AddMessage(file->message_type(i));
    for (int i = 0; i < file->enum_type_count(); ++i) AddEnum(file->enum_type(i));
    for (int i = 0; i < file->service_count(); ++i) {
      services.push_back(file->service(i));
      for (int j = 0; j < file->service(i)->method_count(); ++j)
        methods.push_back(file->service(i)->method(j));
    }
  }
};

const Api& TheApi() {
  static const Api& api = *[] {
    auto* out = new Api;
    std::ifstream in(API_DESCRIPTORS, std::ios::binary);
    google::protobuf::FileDescriptorSet set;
    if (!set.ParseFromIstream(&in)) return out;
    auto* pool = new google::protobuf::DescriptorPool;
    for (const auto& file : set.file()) {
      const FileDescriptor* built = pool->BuildFile(file);
      if (built != nullptr && built->package() == "scalelab.v1") out->AddFile(built);
    }
    return out;
  }();
  return api;
}

template <typename T>
void ExpectComments(const std::vector<const T*>& things) {
  for (const T* thing : things) {
    SourceLocation location;
    bool found = thing->GetSourceLocation(&location);
    EXPECT_TRUE(found && !(location.leading_comments + location.trailing_comments).empty())
        << thing->full_name() << " has no comment; say what it means, with unit and default";
  }
}

TEST(ApiLint, FindsTheWholeApi) {
  EXPECT_GE(TheApi().services.size(), 5u);
  EXPECT_GE(TheApi().messages.size(), 50u);
}

TEST(ApiLint, EverythingHasAComment) {
  ExpectComments(TheApi().messages);
  ExpectComments(TheApi().fields);
  ExpectComments(TheApi().enums);
  ExpectComments(TheApi().values);
  ExpectComments(TheApi().services);
  ExpectComments(TheApi().methods);
}

TEST(ApiLint, FieldNamesAreSnakeCase) {
  const std::regex snake("[a-z][a-z0-9]*(_[a-z0-9]+)*");
  for (const FieldDescriptor* field : TheApi().fields) {
    EXPECT_TRUE(std::regex_match(field->name(), snake)) << field->full_name();
  }
}

TEST(ApiLint, ZeroOfEveryEnumMeansUnspecified) {
  for (const EnumDescriptor* type : TheApi().enums) {
    EXPECT_EQ(type->value(0)->number(), 0) << type->full_name();
    EXPECT_THAT(type->value(0)->name(), testing::EndsWith("UNSPECIFIED")) << type->full_name();
  }
}

TEST(ApiLint, EveryRpcHasARequestAndAResponseOfItsOwn) {
  for (const MethodDescriptor* method : TheApi().methods) {
    EXPECT_EQ(method->input_type()->name(), method->name() + "Request") << method->full_name();
    EXPECT_EQ(method->output_type()->name(), method->name() + "Response") << method->full_name();
  }
}

std::string TypeOf(const FieldDescriptor* field) {
  if (field->is_map()) {
    return "map<" + TypeOf(field->message_type()->map_key()) + "," +
           TypeOf(field->message_type()->map_value()) + ">";
  }
  if (field->message_type() != nullptr) return field->message_type()->full_name();
  if (field->enum_type() != nullptr) return field->enum_type()->full_name();
  return field->type_name();
}

std::string LabelOf(const FieldDescriptor* field) {
  if (field->is_map() || !field->is_repeated())
    return field->has_optional_keyword() ? "optional" : "singular";
  return "repeated";
}

// Everything that the wire format and generated code depend on: name -> number, type and label.
std::map<std::string, std::string> Promises() {
  std::map<std::string, std::string> out;
  for (const Descriptor* message : TheApi().messages) out[message->full_name()] = "message";
  for (const FieldDescriptor* field : TheApi().fields) {
    const auto* oneof = field->real_containing_oneof();
    out[field->full_name()] = std::to_string(field->number()) + " " + TypeOf(field) + " " + LabelOf(field) +
                              (oneof != nullptr ? " oneof " + oneof->name() : "");
  }
  for (const EnumDescriptor* type : TheApi().enums) out[type->full_name()] = "enum";
  for (const EnumDescriptor* type : TheApi().enums) {
    // protobuf's full name of an enum value does not contain its enum.
    for (int i = 0; i < type->value_count(); ++i) {
      out[type->full_name() + "." + type->value(i)->name()] = std::to_string(type->value(i)->number());
    }
  }
  for (const ServiceDescriptor* service : TheApi().services) out[service->full_name()] = "service";
  for (const MethodDescriptor* method : TheApi().methods) {
    out[method->full_name()] = std::string("rpc ") + (method->client_streaming() ? "stream " : "") +
                               method->input_type()->full_name() + " -> " +
                               (method->server_streaming() ? "stream " : "") +
                               method->output_type()->full_name();
  }
  return out;
}

constexpr char kHowToUpdate[] =
    "; if this is meant, run api_lint_test --update and commit tests/golden/api.txt";

TEST(ApiLint, KeepsEveryPromiseOfTheCommittedList) {
  const std::map<std::string, std::string> now = Promises();
  if (update_golden) {
    std::ofstream out(API_GOLDEN);
    out << "# Everything that package scalelab.v1 has promised, written by api_lint_test --update.\n"
           "# A field is: name number type label.\n";
    for (const auto& [name, promise] : now) out << name << " " << promise << "\n";
    ASSERT_TRUE(out.flush()) << API_GOLDEN << " could not be written";
    GTEST_SKIP() << "wrote " << API_GOLDEN;
  }
  std::ifstream in(API_GOLDEN);
  ASSERT_TRUE(in) << API_GOLDEN << " is missing; run api_lint_test --update";
  std::map<std::string, std::string> then;
  for (std::string line; std::getline(in, line);) {
    size_t space = line.find(' ');
    if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
    then[line.substr(0, space)] = line.substr(space + 1);
  }
  ASSERT_FALSE(then.empty());
  for (const auto& [name, promise] : then) {
    auto found = now.find(name);
    if (found == now.end()) {
      ADD_FAILURE() << name << " (" << promise << ") is gone, which breaks clients of today" << kHowToUpdate;
    } else {
      EXPECT_EQ(found->second, promise)
          << name << " has changed, which breaks clients of today" << kHowToUpdate;
    }
  }
  for (const auto& [name, promise] : now) {
    EXPECT_TRUE(then.contains(name)) << name << " (" << promise << ") is new" << kHowToUpdate;
  }
}

}  // namespace
}  // namespace scalelab

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--update") scalelab::update_golden = true;
  }
  return RUN_ALL_TESTS();
}
