// `scalelab study export STUDY`: writes runs, metric points and the curve of a study into files for other programs.
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/export/data_files.h"
#include "client/export/export.h"
#include "client/export/study_tables.h"
#include "client/export/study_yaml.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::GetCurveRequest;
using scalelab::v1::GetRunRequest;
using scalelab::v1::GetStudyRequest;
using scalelab::v1::ListRunsRequest;
using scalelab::v1::ResultService;
using scalelab::v1::Run;
using scalelab::v1::RunService;
using scalelab::v1::StudyService;

struct ExportOptions {
  std::string study;
  std::string format = "csv";
  std::string directory;
};

// Returns the runs of a study in the order of execution, with attempts and all results.
absl::StatusOr<std::vector<Run>> AllRuns(Connection& server, const std::string& study) {
  std::vector<Run> runs;
  ListRunsRequest request;
  request.set_parent(study);
  request.set_page_size(10'000);
  do {
    const auto page = server.Call(server.runs(), &RunService::Stub::ListRuns, request);
    if (!page.ok()) return page.status();
    for (const Run& listed : page->runs()) {
      GetRunRequest one;
      one.set_name(listed.name());
      auto run = server.Call(server.runs(), &RunService::Stub::GetRun, one);
      if (!run.ok()) return run.status();
      runs.push_back(std::move(*run->mutable_run()));
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return runs;
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

absl::StatusOr<ExitCode> ExportStudy(const ExportOptions& options, Session& session) {
  if (options.format == "parquet" || options.format == "tensorboard") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--format ", options.format,
        " needs the Python client: pip install 'scalelab[export]', then python3 -m scalelab export ",
        options.study, " --format ", options.format, " -o ", options.directory));
  }
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  GetStudyRequest get;
  get.set_name(*name);
  const auto study = (*server)->Call((*server)->studies(), &StudyService::Stub::GetStudy, get);
  if (!study.ok()) return study.status();
  const std::string& found = study->study().name();  // "last" may mean another study later
  GetCurveRequest get_curve;
  get_curve.set_study(found);
  const auto curve = (*server)->Call((*server)->results(), &ResultService::Stub::GetCurve, get_curve);
  if (!curve.ok()) return curve.status();
  const auto runs = AllRuns(**server, found);
  if (!runs.ok()) return runs.status();

  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error)
    return absl::UnknownError(absl::StrCat("cannot create ", options.directory, ": ", error.message()));
  const absl::Duration timeout = session.options().timeout.value_or(absl::InfiniteDuration());
  const auto say = [&session](absl::string_view words) { session.Say(words); };
  const absl::Status written =
      WriteTables(options, {RunData(*runs), PointData(**server, *runs, timeout, say), CurveData(*curve)});
  if (!written.ok()) return written;
  const std::string file = options.directory + "/study.yaml";
  std::ofstream yaml(file, std::ios::trunc);
  yaml << StudyYaml(study->study().spec());
  yaml.close();
  if (!yaml) return absl::UnknownError(absl::StrCat("cannot write ", file));
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
  // In this command -o is the directory, not the output format.
  command->add_option("-o,--directory", options->directory, "Directory for the files; it is created")
      ->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExportStudy(*options, s); }; });
}

}  // namespace scalelab::client
