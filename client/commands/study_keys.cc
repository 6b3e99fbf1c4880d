// `scalelab study keys`: prints the table of run parameters that a study file may set. Needs no server.
#include "absl/strings/str_cat.h"
#include "catalog/run_parameters.h"
#include "client/commands/commands.h"

namespace scalelab::client {
namespace {

v1::StudyKey ToKey(const RunParameter& parameter) {
  v1::StudyKey key;
  key.set_name(std::string(parameter.name));
  key.set_type(std::string(TypeName(parameter.type)));
  key.set_default_value(DefaultText(parameter));
  key.set_values(ValuesText(parameter));
  key.set_unit(std::string(parameter.unit));
  for (absl::string_view engine : ReadingEngines(parameter)) key.add_engines(std::string(engine));
  key.set_help(std::string(parameter.help));
  key.set_details(std::string(parameter.details));
  return key;
}

// Returns the allowed values, or their number if the list would fill the table.
std::string ShortValues(const RunParameter& parameter) {
  constexpr size_t kMostNames = 6;
  if (parameter.choices.size() > kMostNames) return absl::StrCat(parameter.choices.size(), " names");
  return ValuesText(parameter);
}

absl::StatusOr<ExitCode> ExecuteStudyKeys(Session& session) {
  v1::StudyKeyTable table;
  for (const RunParameter& parameter : RunParameters()) {
    if (parameter.study_key) *table.add_keys() = ToKey(parameter);
  }
  Section section;
  section.columns = {{"key"},
                     {"type"},
                     {"default"},
                     {"values", Column::In::kTables, false, true},
                     {"values", Column::In::kCsv},
                     {"unit", Column::In::kCsv},
                     {"engines", Column::In::kWide, false, true},
                     {"meaning", Column::In::kAll, false, true}};
  section.rows = [&table](const RowSink& sink) {
    for (const v1::StudyKey& key : table.keys()) {
      const RunParameter& parameter = *FindStudyKey(key.name());
      sink({key.name(), key.type(), key.default_value(), ShortValues(parameter), key.values(), key.unit(),
            EnginesText(parameter), key.help()});
    }
  };
  if (const absl::Status status = session.Print({table, {section}}); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyKeys(CLI::App& study, Action& chosen) {
  CLI::App* command = study.add_subcommand(
      "keys", "List the parameters that a study file may set in fixed, matrix and zip; needs no server");
  command->callback([&chosen] { chosen = [](Session& session) { return ExecuteStudyKeys(session); }; });
}

}  // namespace scalelab::client
