#include "client/selection/study_selection.h"

#include <optional>
#include <utility>

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
  if (name == "skipped") return NumberField(counts.skipped());
  return std::nullopt;
}

absl::Status CheckField(absl::string_view option, const std::string& name) {
  if (FieldOf(Study(), name).has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": '", name,
                   "' is no field of a study; known: number, name, owner, state, queued, running, "
                   "succeeded, failed, cancelled, skipped"));
}

}  // namespace

absl::Status SelectStudies(const StudySelection& selection,
                           google::protobuf::RepeatedPtrField<Study>& studies) {
  const auto conditions =
      ParseConditions(selection.where, [](const std::string& name) { return CheckField("--where", name); });
  if (!conditions.ok()) return conditions.status();
  const Sorting sorting = ParseSorting(selection.sort);
  if (!sorting.field.empty()) {
    if (absl::Status known = CheckField("--sort", sorting.field); !known.ok()) return known;
  }
  std::vector<int> kept;
  for (int i = 0; i < studies.size(); ++i) {
    if (Fulfils(*conditions, [&](const std::string& name) { return FieldOf(studies[i], name); }))
      kept.push_back(i);
  }
  if (!sorting.field.empty())
    SortByField(
        sorting, [&](int i) { return FieldOf(studies[i], sorting.field); }, kept);
  if (selection.limit > 0 && kept.size() > static_cast<size_t>(selection.limit))
    kept.resize(static_cast<size_t>(selection.limit));
  google::protobuf::RepeatedPtrField<Study> selected;
  for (const int i : kept) selected.Add(std::move(studies[i]));
  studies.Swap(&selected);
  return absl::OkStatus();
}

}  // namespace scalelab::client
