#include "client/selection/study_selection.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/output/text.h"
#include "client/selection/conditions.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Study;

// Returns nothing if studies have no such field.
std::optional<Field> FieldOf(const Study& study, const std::string& name) {
  const auto& counts = study.counts();
  if (name == "number") {
    const std::string number = LastPart(study.name());
    double value = 0;
    return absl::SimpleAtod(number, &value) ? Field{number, value} : Field{number, std::nullopt};
  }
  if (name == "name") return Field{study.display_name(), std::nullopt};
  if (name == "owner") return Field{study.owner(), std::nullopt};
  if (name == "state") return Field{EnumText(Study::State_Name(study.state())), std::nullopt};
  if (name == "queued") return NumberField(counts.queued());
  if (name == "running") return NumberField(counts.running());
  if (name == "succeeded") return NumberField(counts.succeeded());
  if (name == "failed") return NumberField(counts.failed());
  if (name == "cancelled") return NumberField(counts.cancelled());
  return std::nullopt;
}

}  // namespace

absl::Status SelectStudies(const std::vector<std::string>& where,
                           google::protobuf::RepeatedPtrField<Study>& studies) {
  const auto conditions = ParseConditions(where, [](const std::string& name) {
    if (FieldOf(Study(), name).has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--where: '", name,
                     "' is no field of a study; known: number, name, owner, state, queued, running, "
                     "succeeded, failed, cancelled"));
  });
  if (!conditions.ok()) return conditions.status();
  const auto unwanted = [&](const Study& study) {
    return !Fulfils(*conditions, [&](const std::string& name) { return FieldOf(study, name); });
  };
  studies.erase(std::remove_if(studies.begin(), studies.end(), unwanted), studies.end());
  return absl::OkStatus();
}

}  // namespace scalelab::client
