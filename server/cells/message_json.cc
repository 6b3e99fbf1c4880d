#include "server/cells/message_json.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "proto/json_depth.h"
#include "server/cells/json_writer.h"

namespace scalelab::server {
namespace {

std::string PrintJson(const google::protobuf::Message& message, bool defaults) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = defaults;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  return status.ok() ? json : "{}";  // fails only for a Struct with NaN, which validation refuses
}

}  // namespace

// protobuf prints map entries in no fixed order; parsing and printing again sorts them.
std::string ToJson(const google::protobuf::Message& message) {
  if (std::optional<std::string> written = WriteJson(message)) return *std::move(written);
  return nlohmann::json::parse(PrintJson(message, false)).dump();
}

std::string ToFullJson(const google::protobuf::Message& message) {
  if (std::optional<std::string> written = WriteFullJson(message)) return *std::move(written);
  return PrintJson(message, true);
}

absl::Status FromJson(const std::string& json, google::protobuf::Message* message) {
  if (IsDeeplyNested(json)) return absl::DataLossError("values are nested too deeply");
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto status = google::protobuf::util::JsonStringToMessage(json, message, options);
  return status.ok() ? absl::OkStatus() : absl::DataLossError(status.ToString());
}

}  // namespace scalelab::server
