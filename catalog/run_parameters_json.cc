#include "catalog/engines.h"
#include "catalog/run_parameters.h"
#include "nlohmann/json.hpp"

namespace scalelab {
namespace {

using Json = nlohmann::ordered_json;

const char* ProgramName(Engine::Program program) {
  switch (program) {
    case Engine::Program::kTrainer:
      return "trainer";
    case Engine::Program::kAdapter:
      return "adapter";
    case Engine::Program::kCommand:
      return "command";
  }
  return "";
}

Json Number(const RunParameter& parameter, double number) {
  if (IsInteger(parameter.type)) return static_cast<int64_t>(number);
  return number;
}

Json DefaultOf(const RunParameter& parameter) {
  if (const auto* text = std::get_if<absl::string_view>(&parameter.default_value)) return std::string(*text);
  if (const auto* flag = std::get_if<bool>(&parameter.default_value)) return *flag;
  if (const auto* number = std::get_if<double>(&parameter.default_value)) return Number(parameter, *number);
  return parameter.type == ParameterType::kMap ? Json::object() : Json::array();
}

// Returns the name of a type in the JSON for the adapters.
std::string TypeJson(ParameterType type) {
  if (type == ParameterType::kStringList) return "string_list";
  if (type == ParameterType::kMap) return "map";
  return std::string(ScalarTypeName(type));
}

Json EnginesJson() {
  Json list = Json::array();
  for (const Engine& engine : Engines()) {
    Json row;
    row["name"] = std::string(engine.name);
    row["program"] = ProgramName(engine.program);
    row["environment"] = std::string(engine.environment);
    row["script"] = std::string(engine.script);
    row["mpi"] = engine.rendezvous == Rendezvous::kMpi;
    row["one_process"] = engine.one_process;
    list.push_back(std::move(row));
  }
  return list;
}

}  // namespace

std::string RunParametersJson() {
  Json list = Json::array();
  for (const RunParameter& parameter : RunParameters()) {
    Json row;
    row["name"] = std::string(parameter.name);
    row["type"] = TypeJson(parameter.type);
    row["default"] = DefaultOf(parameter);
    if (!ValuesText(parameter).empty() && IsNumber(parameter.type)) {
      row["min"] = Number(parameter, parameter.min);
      row["max"] = Number(parameter, parameter.max);
    }
    if (!parameter.choices.empty())
      row["choices"] = std::vector<std::string>(parameter.choices.begin(), parameter.choices.end());
    row["unit"] = std::string(parameter.unit);
    const std::vector<absl::string_view> engines = ReadingEngines(parameter);
    row["engines"] = std::vector<std::string>(engines.begin(), engines.end());
    row["native_only"] = IsNativeOnly(parameter);
    row["study_key"] = parameter.study_key;
    row["recipe"] = parameter.recipe;
    row["help"] = std::string(parameter.help);
    row["details"] = std::string(parameter.details);
    list.push_back(std::move(row));
  }
  return Json{{"parameters", std::move(list)}, {"engines", EnginesJson()}, {"default_batch", kDefaultBatch}}
             .dump(1) +
         "\n";
}

}  // namespace scalelab
