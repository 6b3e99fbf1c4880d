// Messages as the JSON text that the database stores.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace scalelab::server {

// Returns compact protobuf JSON with proto field names and sorted keys: equal messages give equal text.
std::string ToJson(const google::protobuf::Message& message);
// Like ToJson, but also writes fields with default values. For messages without maps.
std::string ToFullJson(const google::protobuf::Message& message);
// Parses protobuf JSON. Ignores unknown fields, which a newer version may have stored.
absl::Status FromJson(const std::string& json, google::protobuf::Message* message);

}  // namespace scalelab::server
