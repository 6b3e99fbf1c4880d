// `scalelab study keys [KEY...]`: prints the run parameters that a study file may set. Needs no server.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "catalog/nearest.h"
#include "catalog/run_parameters.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"

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

// Returns all facts about one key.
Section KeyFacts(const v1::StudyKey& key) {
  Section facts =
      Facts({{"type", key.type()},
             {"default", key.default_value()},
             {"values", key.values()},
             {"unit", key.unit()},
             {"engines", EnginesText(*FindStudyKey(key.name()))},
             {"meaning", absl::StrCat(key.help(), key.details().empty() ? "" : ". ", key.details())}});
  facts.title = key.name();
  return facts;
}

// Returns INVALID_ARGUMENT with a suggestion if one of the names is not a key.
absl::Status CheckNames(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (FindStudyKey(name) != nullptr) continue;
    const std::string nearest = Nearest(name, StudyKeyNames());
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is no key of fixed, matrix and zip",
                     nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"),
                     nearest.empty() ? "; `scalelab study keys` lists them" : ""));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> ExecuteStudyKeys(const std::vector<std::string>& names, Session& session) {
  if (const absl::Status known = CheckNames(names); !known.ok()) return known;
  v1::StudyKeyTable table;
  for (const RunParameter& parameter : RunParameters()) {
    const bool wanted = names.empty() || std::ranges::find(names, parameter.name) != names.end();
    if (parameter.study_key && wanted) *table.add_keys() = ToKey(parameter);
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
  Answer answer{table, {section}};
  answer.sections[0].in_tables = names.empty();
  if (!names.empty()) {
    for (const v1::StudyKey& key : table.keys()) answer.sections.push_back(KeyFacts(key));
  }
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyKeys(CLI::App& study, Action& chosen) {
  CLI::App* command = study.add_subcommand(
      "keys", "List the parameters that a study file may set in fixed, matrix and zip; needs no server");
  auto names = std::make_shared<std::vector<std::string>>();
  command->add_option("KEYS", *names, "Show everything about these parameters, in place of the list");
  command->callback(
      [names, &chosen] { chosen = [names](Session& session) { return ExecuteStudyKeys(*names, session); }; });
}

}  // namespace scalelab::client
