#include "server/runs/provenance.h"

#include <map>
#include <nlohmann/json.hpp>

#include "proto/json_depth.h"
#include "server/cells/message_json.h"

namespace scalelab::server {
namespace {

// Returns the array of ProvenanceJson, or a discarded value if the text is not JSON or is nested deeply. The
// text may come from an archive, and dump() is recursive, so that the depth must be limited.
nlohmann::json ParseProvenance(const std::string& json) {
  if (IsDeeplyNested(json)) return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::string ProvenanceJson(const std::vector<v1::NodeInfo>& nodes, const std::vector<v1::NodeNoise>& noise,
                           const v1::CodeSnapshot& code) {
  auto array = nlohmann::ordered_json::array();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const v1::NodeInfo& node = nodes[i];
    array.push_back(
        {{"cpus", node.cpus()},
         {"cpu_model", node.cpu_model()},
         {"memory_bytes", node.memory_bytes()},
         {"gpus", std::vector<std::string>(node.gpus().begin(), node.gpus().end())},
         {"os", node.os()},
         {"software", std::map<std::string, std::string>(node.software().begin(), node.software().end())}});
    if (i < noise.size()) array.back()["noise"] = nlohmann::ordered_json::parse(ToJson(noise[i]));
    if (i == 0 && code.files_size() > 0) array.back()["code"] = nlohmann::ordered_json::parse(ToJson(code));
  }
  return array.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<v1::NodeInfo> NodesOfProvenance(const std::string& json) {
  std::vector<v1::NodeInfo> nodes;
  const auto array = ParseProvenance(json);
  try {
    for (const auto& node : array) {
      v1::NodeInfo& info = nodes.emplace_back();
      info.set_cpus(node.at("cpus"));
      info.set_cpu_model(node.at("cpu_model").get<std::string>());
      info.set_memory_bytes(node.at("memory_bytes"));
      for (const auto& gpu : node.at("gpus")) info.add_gpus(gpu.get<std::string>());
      info.set_os(node.at("os").get<std::string>());
      for (const auto& [name, version] : node.at("software").items())
        (*info.mutable_software())[name] = version.get<std::string>();
    }
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return nodes;
}

std::vector<v1::NodeNoise> NoiseOfProvenance(const std::string& json) {
  std::vector<v1::NodeNoise> all;
  const auto array = ParseProvenance(json);
  if (!array.is_array()) return {};
  for (const auto& node : array) {
    if (!node.is_object() || !node.contains("noise")) continue;
    v1::NodeNoise noise;
    if (!FromJson(node["noise"].dump(), &noise).ok()) return {};
    all.push_back(std::move(noise));
  }
  return all;
}

std::optional<v1::CodeSnapshot> CodeOfProvenance(const std::string& json) {
  const auto array = ParseProvenance(json);
  if (!array.is_array() || array.empty() || !array[0].is_object() || !array[0].contains("code"))
    return std::nullopt;
  v1::CodeSnapshot code;
  if (!FromJson(array[0]["code"].dump(), &code).ok()) return std::nullopt;
  return code;
}

}  // namespace scalelab::server
