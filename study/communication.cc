#include "study/communication.h"

#include "catalog/engines.h"
#include "study/values.h"

namespace scalelab {

bool OverlapsCommunication(absl::string_view name) {
  const Engine* engine = FindEngine(name);
  return engine != nullptr && engine->synchronisation == Engine::Synchronisation::kOverlapped;
}

bool IsBaselineEngine(absl::string_view name) {
  return name == UnsynchronisedEngine().name || name == SerialEngine().name;
}

bool EngineReads(absl::string_view name, absl::string_view key) {
  const Engine* engine = FindEngine(name);
  const RunParameter* parameter = FindStudyKey(key);
  return engine == nullptr || parameter == nullptr || engine->Reads(parameter->group);
}

std::string ComparisonKey(const v1::RunSpec& run, absl::string_view name) {
  v1::RunSpec same = run;
  same.set_engine(std::string(name));
  same.clear_communication_baseline();
  const Engine* engine = FindEngine(name);
  for (const RunParameter& parameter : RunParameters()) {
    if (engine != nullptr && !engine->Reads(parameter.group)) ClearField(parameter, &same);
  }
  return Fingerprint(same);
}

}  // namespace scalelab
