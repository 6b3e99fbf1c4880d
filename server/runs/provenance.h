// The hardware, software, noise and code of an attempt as the JSON text that the database stores.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scalelab/v1/run.pb.h"

namespace scalelab::server {

// Returns the hardware, the software and the measured noise of the nodes as a JSON array. The first node
// also has `code`, if there is any.
std::string ProvenanceJson(const std::vector<v1::NodeInfo>& nodes,
                           const std::vector<v1::NodeNoise>& noise = {}, const v1::CodeSnapshot& code = {});

// Returns the nodes from the JSON array of ProvenanceJson; nothing if it is malformed.
std::vector<v1::NodeInfo> NodesOfProvenance(const std::string& json);
// Returns the measured noise from the JSON array of ProvenanceJson; nothing if it is malformed or has none.
std::vector<v1::NodeNoise> NoiseOfProvenance(const std::string& json);
// Returns the code from the JSON array of ProvenanceJson; nothing if it is malformed or has none.
std::optional<v1::CodeSnapshot> CodeOfProvenance(const std::string& json);

}  // namespace scalelab::server
