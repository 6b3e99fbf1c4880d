// Writes most messages as the JSON of protobuf, several times faster than protobuf's own converter.
#pragma once

#include <optional>
#include <string>

#include "google/protobuf/message.h"

namespace scalelab::server {

// Return what ToJson and ToFullJson (message_json.h) return for the message. Return nothing for a message with fields of a
// kind, or with characters, that only protobuf's own converter writes.
std::optional<std::string> WriteJson(const google::protobuf::Message& message);
std::optional<std::string> WriteFullJson(const google::protobuf::Message& message);

}  // namespace scalelab::server
