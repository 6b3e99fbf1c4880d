#include "events/software.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "files/regular_file.h"
#include "proto/utf8.h"

namespace scalelab {

std::map<std::string, std::string> SoftwareOf(const v1::FrameworkEnvironment* environment,
                                              const std::string& event_file) {
  constexpr size_t kHeadBytes = 1 << 20;  // the start event should be the first line
  std::map<std::string, std::string> software;
  const std::string head = ReadHead(event_file, kHeadBytes);
  for (const absl::string_view line : absl::StrSplit(head, '\n')) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object() || event.value("event", nlohmann::json()) != "start") continue;
    const auto text = [&](const char* key) {
      const auto it = event.find(key);
      return it != event.end() && it->is_string() ? it->get<std::string>() : std::string();
    };
    const std::string framework = text("framework"), version = text("version");
    // Some adapters report their version with the name: "torch 1.13.1".
    const bool named = absl::StartsWith(version, framework);
    if (environment != nullptr && !framework.empty())
      software["framework"] = named ? version : absl::StrCat(framework, " ", version);
    if (!text("device").empty()) software["device"] = ValidUtf8(text("device"));
    break;
  }
  if (environment == nullptr) return software;
  std::error_code error;
  const auto venv = std::filesystem::canonical(environment->venv(), error);
  std::vector<std::string> parts;
  if (!environment->venv().empty()) parts.push_back(error ? environment->venv() : venv.filename().string());
  if (!environment->container().empty()) parts.push_back(environment->container());
  parts.insert(parts.end(), environment->modules().begin(), environment->modules().end());
  if (!parts.empty()) software["environment"] = ValidUtf8(absl::StrJoin(parts, " "));
  return software;
}

}  // namespace scalelab
