// `scalelab study export STUDY`: writes runs, metric points and the curve of a study into files for other programs.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/export/data_files.h"
#include "client/export/export.h"
#include "client/export/python_export.h"
#include "client/export/study_tables.h"
#include "client/export/study_yaml.h"
#include "client/output/file.h"
#include "client/selection/run_selection.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::GetCurveRequest;
using scalelab::v1::GetStudyRequest;
using scalelab::v1::ResultService;
using scalelab::v1::StudyService;

struct ExportOptions {
  std::string study;
  std::string format = "csv";
  std::string directory;
  RunSelection runs;  // its `where` only
};

// Keeps the selected runs.
absl::Status Select(const RunSelection& selection, std::vector<scalelab::v1::Run>& runs) {
  if (selection.where.empty()) return absl::OkStatus();
  google::protobuf::RepeatedPtrField<scalelab::v1::Run> selected;
  selected.Reserve(static_cast<int>(runs.size()));
  for (scalelab::v1::Run& run : runs) selected.Add(std::move(run));
  if (absl::Status status = SelectRuns(selection, selected); !status.ok()) return status;
  runs.clear();
  for (scalelab::v1::Run& run : selected) runs.push_back(std::move(run));
  return absl::OkStatus();
}

absl::Status WriteTables(const ExportOptions& options, const std::vector<DataTable>& tables) {
  const std::string& directory = options.directory;
  if (options.format == "sqlite") return WriteSqlite(tables, directory + "/study.sqlite");
  for (const DataTable& table : tables) {
    const std::string path = absl::StrCat(directory, "/", table.name, ".", options.format);
    if (absl::Status status = options.format == "csv" ? WriteCsv(table, path) : WriteJson(table, path);
        !status.ok())
      return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> ExportWithPython(const ExportOptions& options, const GlobalOptions& global) {
  std::vector<std::string> arguments = {"export",       options.study, "--format",
                                        options.format, "-o",          options.directory};
  if (!global.server.empty()) arguments.insert(arguments.end(), {"--server", global.server});
  if (!global.token_file.empty()) arguments.insert(arguments.end(), {"--token-file", global.token_file});
  if (global.timeout.has_value()) {
    // Python has no infinite timeout; one year is long enough.
    const absl::Duration timeout = std::min(*global.timeout, absl::Hours(24 * 365));
    arguments.insert(arguments.end(), {"--timeout", absl::StrCat(absl::ToDoubleSeconds(timeout))});
  }
  auto code = RunPythonClient(arguments);
  if (!absl::IsFailedPrecondition(code.status())) return code;
  return absl::InvalidArgumentError(absl::StrCat(
      "--format ", options.format, " needs the Python client, and ", code.status().message(),
      ": pip install \"$(echo /usr/share/scalelab/python/scalelab-*.whl)[export]\" (in a checkout, ",
      "deploy/python-client writes the wheel into build/python), then run this command again or "
      "python3 -m scalelab ",
      absl::StrJoin(arguments, " ")));
}

absl::StatusOr<ExitCode> ExportStudy(const ExportOptions& options, Session& session) {
  if (options.format == "parquet" || options.format == "tensorboard") {
    if (!options.runs.where.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--where: the Python client writes ", options.format,
                       " and exports all runs; use --format csv, json or sqlite"));
    }
    return ExportWithPython(options, session.options());
  }
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  GetStudyRequest get;
  get.set_name(*name);
  const auto study = (*server)->Call((*server)->studies(), &StudyService::Stub::GetStudy, get);
  if (!study.ok()) return study.status();
  const std::string& found = study->study().name();  // for further calls: "last" may mean another study then
  GetCurveRequest get_curve;
  get_curve.set_study(found);
  const auto curve = (*server)->Call((*server)->results(), &ResultService::Stub::GetCurve, get_curve);
  if (!curve.ok()) return curve.status();
  auto runs = ReadAllRuns(**server, found);
  if (!runs.ok()) return runs.status();
  if (const absl::Status status = Select(options.runs, *runs); !status.ok()) return status;

  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error)
    return absl::UnknownError(absl::StrCat("cannot create ", options.directory, ": ", error.message()));
  const absl::Duration timeout = session.options().timeout.value_or(absl::InfiniteDuration());
  const auto say = [&session](absl::string_view words) { session.Say(words); };
  const absl::Status written = WriteTables(
      options,
      {RunData(*runs), AttemptData(*runs), PointData(**server, *runs, timeout, say), CurveData(*curve)});
  if (!written.ok()) return written;
  const std::string file = options.directory + "/study.yaml";
  if (const absl::Status status = ReplaceFile(file, StudyYaml(study->study().spec())); !status.ok())
    return status;
  session.Say(absl::StrCat(found, ": ", runs->size(), " runs are in ", options.directory));
  return ExitCode::kOk;
}

}  // namespace

void AddStudyExport(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command =
      study.add_subcommand("export", "Write runs, metrics and the curve of a study into files");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  command
      ->add_option("--format", options->format,
                   "csv, json or sqlite; parquet and tensorboard with the Python client")
      ->check(CLI::IsMember({"csv", "json", "sqlite", "parquet", "tensorboard"}))
      ->capture_default_str();
  command
      ->add_option("--where", options->runs.where,
                   "Only runs that fulfil conditions, and their points, for example 'state=succeeded and "
                   "ranks>=4'; the curve is always that of all runs; may be repeated")
      ->allow_extra_args(false);
  // In this command -o is the directory, not the output format.
  command->add_option("-o,--directory", options->directory, "Directory for the files; it is created")
      ->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExportStudy(*options, s); }; });
}

}  // namespace scalelab::client
