#include "client/selection/run_selection.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/text.h"
#include "client/selection/conditions.h"
#include "study/values.h"

namespace scalelab::client {
namespace {

using google::protobuf::RepeatedPtrField;
using scalelab::v1::Attempt;
using scalelab::v1::Run;

constexpr std::array<absl::string_view, 8> kFields = {"run",   "repeat",  "position", "state",
                                                      "cause", "message", "seconds",  "throughput"};

std::optional<Field> FieldOf(const Run& run, absl::string_view name) {
  if (name == "run") {
    const std::string number = LastPart(run.name());
    double value = 0;
    return absl::SimpleAtod(number, &value) ? Field{number, value} : Field{number, std::nullopt};
  }
  if (name == "repeat") return NumberField(run.repeat());
  if (name == "position") return NumberField(run.position());
  if (name == "state") return Field{EnumText(Run::State_Name(run.state())), std::nullopt};
  if (name == "cause") return Field{EnumText(Attempt::Cause_Name(run.cause())), std::nullopt};
  if (name == "message") return Field{run.message(), std::nullopt};
  if (name == "seconds") {
    if (!run.has_start_time() || !run.has_finish_time()) return std::nullopt;
    return NumberField(Seconds(run.finish_time()) - Seconds(run.start_time()));
  }
  if (name == "throughput") {
    const auto it = run.summary().find("run/throughput");
    return it == run.summary().end() ? std::nullopt : std::optional<Field>(NumberField(it->second));
  }
  const auto it = run.key().fields().find(std::string(name));
  if (it != run.key().fields().end()) return ValueField(it->second);
  const GridKey key = FindGridKey(name);
  if (CheckKey(key).has_value()) return std::nullopt;
  if (!key.member.empty()) {
    const auto& map = key.parameter->name == "env" ? run.spec().env() : run.spec().params();
    const auto member = map.fields().find(key.member);
    return member == map.fields().end() ? std::nullopt : std::optional<Field>(ValueField(member->second));
  }
  Field field{FieldText(*key.parameter, run.spec()), std::nullopt};
  if (double number = 0; absl::SimpleAtod(field.text, &number)) field.number = number;
  return field;
}

std::vector<std::string> FieldNames(const RepeatedPtrField<Run>& runs) {
  std::vector<const google::protobuf::Struct*> keys;
  for (const Run& run : runs) keys.push_back(&run.key());
  std::vector<std::string> names = AxesOf(keys);
  for (const absl::string_view name : kFields) names.emplace_back(name);
  return names;
}

absl::Status UnknownField(absl::string_view option, const std::string& name,
                          const std::vector<std::string>& names) {
  const std::string own = absl::StrCat("params.", name);
  const bool meant = std::find(names.begin(), names.end(), own) != names.end();
  return absl::InvalidArgumentError(absl::StrCat(
      option, ": '", name, "' is no field of these runs", meant ? absl::StrCat("; write ", own) : "",
      "; known: ", absl::StrJoin(names, ", "), " and the keys of `scalelab study keys`"));
}

bool IsKnown(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end() ||
         !CheckKey(FindGridKey(name)).has_value();
}

}  // namespace

absl::Status SelectRuns(const RunSelection& selection, RepeatedPtrField<Run>& runs) {
  const std::vector<std::string> names = FieldNames(runs);
  const auto conditions = ParseConditions(selection.where, [&names](const std::string& name) {
    return IsKnown(name, names) ? absl::OkStatus() : UnknownField("--where", name, names);
  });
  if (!conditions.ok()) return conditions.status();
  const Sorting sorting = ParseSorting(selection.sort);
  if (!sorting.field.empty() && !IsKnown(sorting.field, names))
    return UnknownField("--sort", sorting.field, names);

  std::vector<int> kept;
  for (int i = 0; i < runs.size(); ++i) {
    if (Fulfils(*conditions, [&](const std::string& name) { return FieldOf(runs[i], name); }))
      kept.push_back(i);
  }
  if (!sorting.field.empty())
    SortByField(
        sorting, [&](int i) { return FieldOf(runs[i], sorting.field); }, kept);
  if (selection.limit > 0 && kept.size() > static_cast<size_t>(selection.limit))
    kept.resize(static_cast<size_t>(selection.limit));
  RepeatedPtrField<Run> selected;
  selected.Reserve(static_cast<int>(kept.size()));
  for (const int i : kept) selected.Add(std::move(runs[i]));
  runs.Swap(&selected);
  return absl::OkStatus();
}

}  // namespace scalelab::client
