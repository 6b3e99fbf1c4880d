// Parses the keys `limits` and `fair_share` of the configuration file.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/core/fair/policy.h"

namespace YAML {
class Node;
struct Mark;
}  // namespace YAML

namespace scalelab::server {

// Formats a place in the file as "FILE:LINE:COLUMN".
using PlaceText = std::function<std::string(const YAML::Mark&)>;

// Read the values of the keys. Return INVALID_ARGUMENT with a message that starts with the place of the error.
absl::Status ReadLimits(const YAML::Node& node, const PlaceText& at, Limits* limits);
absl::Status ReadFairShare(const YAML::Node& node, const PlaceText& at, FairShare* share);

}  // namespace scalelab::server
