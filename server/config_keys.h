// The keys of the configuration: one table for the keys that are also flags, and one for the keys that only
// the file can set.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/config.h"
#include "server/config_policy.h"

namespace scalelab::server {

// A setting: the flag --NAME, and the key NAME of the file, with '_' instead of '-'.
struct Setting {
  const char* name;
  const char* value;
  const char* help;
  absl::Status (*set)(ServerConfig& config, const std::string& value);
  bool repeats = false;
  bool reloads = false;  // a running scalelabd can change it
};

// A key of the file that has a structure, and no flag.
struct Structure {
  const char* key;
  absl::Status (*read)(const YAML::Node& node, const PlaceText& at, ServerConfig& config);
  bool reloads;
};

const std::vector<Setting>& Settings();
const std::vector<Structure>& Structures();
// Returns the key of the file.
std::string KeyOf(const Setting& setting);

// Returns INVALID_ARGUMENT.
absl::Status Invalid(const std::string& sentence);
// Set a field, or return INVALID_ARGUMENT with a message that quotes the value and lists the allowed values.
absl::Status SetPath(std::string& field, const std::string& value);
absl::Status SetChoice(std::string& field, const std::string& value,
                       const std::vector<absl::string_view>& choices);
absl::Status AddListen(std::vector<std::string>& field, const std::string& value);

}  // namespace scalelab::server
