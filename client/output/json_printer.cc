#include "client/output/json_printer.h"

#include "google/protobuf/util/json_util.h"

namespace scalelab::client {

std::string ToJson(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = pretty;
  std::string text;
  // Fails only for messages that violate their type, such as a Value without a kind.
  if (const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
      !status.ok()) {
    return "";
  }
  return text;
}

absl::Status JsonPrinter::Print(const Answer& answer) {
  std::string text = ToJson(answer.message, pretty_);
  if (text.empty()) {
    return absl::InternalError(
        "the answer cannot be written as JSON: do client and server have one version?");
  }
  if (text.back() != '\n') text += '\n';
  out_ << text;
  return Flush(out_);
}

}  // namespace scalelab::client
