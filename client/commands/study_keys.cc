// `scalelab study keys [KEY...]`: prints the run parameters that a study file may set, or the keys of its
// sections. Works without a server.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "catalog/nearest.h"
#include "catalog/run_parameters.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "study/sections/section_keys.h"

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

// Returns all facts about one run parameter.
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

// Returns a table of the keys of a section of study files.
Section SectionTable(const std::string& name, std::vector<v1::StudyKey> keys) {
  Section table;
  table.title = name;
  table.columns = {{"key"},
                   {"type", Column::In::kAll, false, false, 1},
                   {"values", Column::In::kAll, false, true},
                   {"meaning", Column::In::kAll, false, true, 0, true}};
  table.rows = [keys = std::move(keys)](const RowSink& sink) {
    for (const v1::StudyKey& key : keys)
      sink({key.name(), key.type(), key.values(),
            absl::StrCat(key.help(), key.details().empty() ? "" : ". ", key.details())});
  };
  return table;
}

// Returns INVALID_ARGUMENT with a suggestion if one of the names is neither a run parameter nor a place of a study file.
absl::Status CheckNames(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (FindStudyKey(name) != nullptr || !SectionKeys(name).empty()) continue;
    std::vector<absl::string_view> known = StudyKeyNames();
    const std::vector<std::string> sections = SectionKeyNames();
    known.insert(known.end(), sections.begin(), sections.end());
    const std::string nearest = Nearest(name, known);
    return absl::InvalidArgumentError(absl::StrCat(
        "'", name, "' is neither a parameter of fixed, matrix and zip nor a section of a study file",
        nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"),
        nearest.empty() ? "; `scalelab study keys` lists the parameters" : ""));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> ExecuteStudyKeys(const std::vector<std::string>& names, Session& session) {
  if (const absl::Status known = CheckNames(names); !known.ok()) return known;
  v1::StudyKeyTable table;
  std::vector<Section> single;  // about one name
  if (names.empty()) {
    for (const RunParameter& parameter : RunParameters()) {
      if (parameter.study_key) *table.add_keys() = ToKey(parameter);
    }
  }
  for (const std::string& name : names) {
    if (const RunParameter* parameter = FindStudyKey(name)) {
      *table.add_keys() = ToKey(*parameter);
      single.push_back(KeyFacts(table.keys(table.keys_size() - 1)));
      continue;
    }
    std::vector<v1::StudyKey> keys = SectionKeys(name);
    table.mutable_keys()->Add(keys.begin(), keys.end());
    single.push_back(SectionTable(name, std::move(keys)));
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
      const RunParameter* parameter = FindStudyKey(key.name());
      sink({key.name(), key.type(), key.default_value(),
            parameter == nullptr ? key.values() : ShortValues(*parameter), key.values(), key.unit(),
            parameter == nullptr ? "" : EnginesText(*parameter), key.help()});
    }
  };
  Answer answer{table, {section}};
  answer.sections[0].in_tables = names.empty();
  for (Section& one : single) answer.sections.push_back(std::move(one));
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyKeys(CLI::App& study, Action& chosen) {
  CLI::App* command = study.add_subcommand("keys",
                                           "List the parameters that a study file may set in fixed, matrix "
                                           "and zip, or the keys of a section; needs no server");
  auto names = std::make_shared<std::vector<std::string>>();
  command->add_option("KEYS", *names,
                      "Show everything about these parameters, or the keys of these sections (scaling, "
                      "measure.extract), in place of the list");
  command->callback(
      [names, &chosen] { chosen = [names](Session& session) { return ExecuteStudyKeys(*names, session); }; });
}

}  // namespace scalelab::client
