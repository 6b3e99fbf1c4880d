// `scalelab study bundle STUDY -o FILE`: writes a finished study with its raw data, figures and checksums to one file.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/bundle/bundle_data.h"
#include "client/bundle/bundle_figures.h"
#include "client/bundle/bundle_file.h"
#include "client/commands/archive/transfer.h"
#include "client/commands/bundle/bundle.h"
#include "client/export/data_files.h"
#include "client/export/study_tables.h"
#include "client/export/study_yaml.h"
#include "client/output/file.h"
#include "client/output/json_printer.h"
#include "client/output/text.h"
#include "client/report/learning_curves.h"
#include "client/report/study_report.h"
#include "client/session/selectors.h"
#include "files/regular_file.h"
#include "nlohmann/json.hpp"

namespace scalelab::client {
namespace {

using scalelab::v1::GetCurveRequest;
using scalelab::v1::GetCurveResponse;
using scalelab::v1::GetStudyRequest;
using scalelab::v1::PlanStudyRequest;
using scalelab::v1::ReadArchiveRequest;
using scalelab::v1::ResultService;
using scalelab::v1::Run;
using scalelab::v1::Study;
using scalelab::v1::StudyService;

struct BundleOptions {
  std::string study, file;
};

constexpr char kReadme[] =
    "This is a scaling study, written by scalelab (`scalelab study bundle`).\n"
    "\n"
    "report.html     the results, for a browser\n"
    "curve.json      every figure of the curves with its interval; curve.csv is the same as a table\n"
    "runs.csv        a row for each run in the order of execution, with its parameters and results\n"
    "study.yaml      the specification; `scalelab study submit study.yaml` repeats the study\n"
    "metrics.csv     every point of every rank: run, rank, step, time, key and value\n"
    "provenance.json the nodes, the hardware, the software and the code version of each attempt\n"
    "study.archive   the same raw data for scalelab, with everything else that the server has of the study\n"
    "plan.json       the cells, runs and jobs of the study; absent if the server could not plan it again\n"
    "code-*.diff     the differences of the program from its git commits; curve.json has their SHA-256.\n"
    "                Absent if the machine that wrote the bundle could not read them\n"
    "manifest.json   where the study comes from\n"
    "\n"
    "`sha256sum -c SHA256SUMS` checks the files without scalelab.\n"
    "`scalelab verify FILE` also computes every figure of curve.json again from study.archive, and makes\n"
    "runs.csv, metrics.csv and provenance.json again. It needs no server.\n"
    "`scalelab study import FILE` stores the study on the server of another laboratory. No run starts.\n";

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

// Returns the address of the server in a form that is meaningful on other machines.
std::string ServerText(const Connection& server) {
  const std::string& text = server.address().text;
  return absl::StartsWith(text, "unix:") ? absl::StrCat(HostName(), " (", text, ")") : text;
}

std::string Manifest(const Study& study, const Connection& server, absl::Time now) {
  nlohmann::ordered_json manifest;
  manifest["format"] = "scalelab bundle 1";
  manifest["study"] = study.name();
  manifest["display_name"] = study.display_name();
  manifest["owner"] = study.owner();
  manifest["server"] = ServerText(server);
  manifest["scalelab"] = SCALELAB_VERSION;
  manifest["written"] = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", now, absl::UTCTimeZone());
  return manifest.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// The content of a bundle, from responses of the server.
struct BundleContent {
  Study study;  // without notifications
  GetCurveResponse curve;
  std::vector<Run> runs;
  std::string report;
  std::string plan;                          // JSON; empty if the server refuses to plan the study
  std::map<std::string, std::string> diffs;  // git differences of the program, by file name in the bundle
};

// Returns the plan of the study without the scripts of jobs, which name paths of the server. Returns nothing, with a message
// for the user, if the server refuses to plan the study: its limits or frameworks may have changed since.
std::string ReadPlan(Connection& server, const Study& study, Session& session) {
  PlanStudyRequest request;
  *request.mutable_spec() = study.spec();
  auto plan = server.Call(server.studies(), &StudyService::Stub::PlanStudy, request);
  if (!plan.ok()) {
    session.Say(absl::StrCat("the bundle has no ", kBundlePlan, ": ", plan.status().message()));
    return "";
  }
  for (auto& allocation : *plan->mutable_allocations()) allocation.clear_script();
  return ToJson(*plan, true);
}

// Reads the differences of the program that the curve names. The files may be on another machine, or deleted.
std::map<std::string, std::string> ReadDiffs(const GetCurveResponse& curve, Session& session) {
  constexpr size_t kNameDigits = 12, kMostDiff = 4 << 20;  // bytes, see CodeSnapshot.diff_sha256
  std::map<std::string, std::string> diffs;
  for (const auto& series : curve.series()) {
    for (const auto& version : series.code_versions()) {
      const auto& code = version.code();
      const std::string name = absl::StrCat("code-", code.diff_sha256().substr(0, kNameDigits), ".diff");
      if (code.diff_sha256().empty() || diffs.contains(name)) continue;
      std::string text = ReadHead(code.diff_path(), kMostDiff);
      Sha256Stream sum;
      sum.Add(text);
      if (sum.Finish() == code.diff_sha256()) {
        diffs[name] = std::move(text);
      } else {
        session.Say(absl::StrCat("the bundle has no ", name, ": ", code.diff_path(),
                                 " cannot be read on this machine, or has changed"));
      }
    }
  }
  return diffs;
}

absl::StatusOr<BundleContent> ReadContent(const std::string& name, Session& session) {
  auto server = session.Server(kFrameworksLimit);
  if (!server.ok()) return server.status();
  BundleContent content;
  GetStudyRequest of_study;
  of_study.set_name(name);
  auto study = (*server)->Call((*server)->studies(), &StudyService::Stub::GetStudy, of_study);
  if (!study.ok()) return study.status();
  content.study = std::move(*study->mutable_study());
  content.study.mutable_spec()->clear_notify();
  content.plan = ReadPlan(**server, content.study, session);
  GetCurveRequest of_curve;
  of_curve.set_study(content.study.name());
  of_curve.set_factors(true);
  auto curve = (*server)->Call((*server)->results(), &ResultService::Stub::GetCurve, of_curve);
  if (!curve.ok()) return curve.status();
  content.curve = *std::move(curve);
  content.diffs = ReadDiffs(content.curve, session);
  auto runs = ReadAllRuns(**server, content.study.name());
  if (!runs.ok()) return runs.status();
  content.runs = *std::move(runs);
  const google::protobuf::RepeatedPtrField<Run> listed(content.runs.begin(), content.runs.end());
  auto machines = ReadMachines(**server, listed);
  if (!machines.ok()) return machines.status();
  StudyResults results{content.study, listed, content.curve, {}, session.now(), *std::move(machines)};
  for (const char* metric : {"train/loss", "eval/accuracy"}) {
    LearningCurves curves;
    curves.key = metric;
    auto plot = ReadLearningCurves(**server, metric, listed, curves);
    if (!plot.ok()) return plot.status();
    results.learning.push_back(*std::move(plot));
  }
  content.report = StudyReport(results);
  return content;
}

// An open temporary file without a name. It stores the archive, because its size must be known before it is
// written to the bundle.
using TemporaryFile = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

absl::Status TemporaryFileError(absl::string_view what, absl::string_view why) {
  return absl::UnknownError(
      absl::StrCat("cannot ", what, " a temporary file: ", why, "; set TMPDIR to a directory with space"));
}

// Creates the file in the directory TMPDIR, which std::tmpfile ignores.
absl::StatusOr<TemporaryFile> MakeTemporaryFile() {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::temp_directory_path(error);
  if (error) return TemporaryFileError("create", error.message());
  std::string path = (directory / "scalelab-bundle-XXXXXX").string();
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return TemporaryFileError("create", std::strerror(errno));
  unlink(path.c_str());
  TemporaryFile file(fdopen(fd, "w+"), &std::fclose);
  if (file != nullptr) return file;
  const int failure = errno;
  close(fd);
  return TemporaryFileError("create", std::strerror(failure));
}

// The archive of the study in a temporary file.
struct DownloadedArchive {
  TemporaryFile file;
  int64_t size = 0;
};

absl::StatusOr<DownloadedArchive> Download(const std::string& study, Session& session) {
  auto temporary = MakeTemporaryFile();
  if (!temporary.ok()) return temporary.status();
  DownloadedArchive archive{*std::move(temporary), 0};
  ReadArchiveRequest request;
  request.set_name(study);
  request.set_publish(true);
  const absl::Status read = DownloadArchive(session, request, [&archive](absl::string_view piece) {
    archive.size += static_cast<int64_t>(piece.size());
    return std::fwrite(piece.data(), 1, piece.size(), archive.file.get()) == piece.size()
               ? absl::OkStatus()
               : TemporaryFileError("write", std::strerror(errno));
  });
  if (!read.ok()) return read;
  if (std::fflush(archive.file.get()) != 0) return TemporaryFileError("write", std::strerror(errno));
  return archive;
}

absl::Status AddArchive(const DownloadedArchive& archive, BundleWriter& bundle) {
  const int fd = fileno(archive.file.get());
  int64_t at = 0;
  return bundle.Add(kBundleArchive, archive.size, [fd, &at](char* to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t got = pread(fd, to + done, bytes - done, at);
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
      at += got;
    }
    return true;
  });
}

// Adds the points as CSV. Makes them from the archive, so that the two agree even if the study changes
// meanwhile.
absl::Status AddPoints(const DownloadedArchive& archive, const std::vector<Run>& runs, Session& session,
                       BundleWriter& bundle) {
  std::optional<FirstNumbers> first = FirstNumbers();
  if (!runs.empty()) first = ParseFirstRun(runs[0].name());
  if (!first.has_value())
    return absl::InternalError(absl::StrCat("the server sent '", runs[0].name(), "' as the name of a run"));
  const auto directory = TemporaryDirectory::Make();
  if (!directory.ok()) return directory.status();
  const auto store = RestoreArchive(fileno(archive.file.get()), directory->path(), *first);
  if (!store.ok()) return store.status();
  const std::string path = absl::StrCat(directory->path(), "/", kBundlePoints);
  if (const absl::Status status = WriteCsv(ArchivedPoints(**store, first->study), path); !status.ok())
    return status;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<int64_t>(file.tellg());
  if (!file) return TemporaryFileError("read", std::strerror(errno));
  if (size > BundleWriter::kMostBytes) {
    session.Say(absl::StrCat("the bundle has no ", kBundlePoints, ": it would have ", size,
                             " bytes; the points are in ", kBundleArchive));
    return absl::OkStatus();
  }
  file.seekg(0);
  return bundle.Add(kBundlePoints, size, [&file](char* to, size_t bytes) {
    return static_cast<bool>(file.read(to, static_cast<std::streamsize>(bytes)));
  });
}

absl::Status WriteBundle(const BundleContent& content, Session& session, std::ofstream& file) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  std::ostringstream runs;
  if (const absl::Status status = WriteCsv(RunData(content.runs), runs); !status.ok()) return status;
  BundleWriter bundle(file);
  const std::pair<const char*, std::string> files[] = {
      {"README.txt", kReadme},
      {kBundleManifest, Manifest(content.study, **server, session.now())},
      {kBundleReport, content.report},
      {kBundleSpec, StudyYaml(content.study.spec())},
      {kBundleRuns, runs.str()},
      {kBundleCurve, ToJson(content.curve, true)},
      {kBundleCurveTable, CurveTableText(content.curve)},
      {kBundleProvenance, ProvenanceText(content.runs)}};
  for (const auto& [name, text] : files) {
    if (const absl::Status status = bundle.Add(name, text); !status.ok()) return status;
  }
  if (!content.plan.empty()) {
    if (const absl::Status status = bundle.Add(kBundlePlan, content.plan); !status.ok()) return status;
  }
  for (const auto& [name, text] : content.diffs) {
    if (const absl::Status status = bundle.Add(name, text); !status.ok()) return status;
  }
  // Reports a full disk before the archive is read.
  if (const absl::Status status = Flush(file); !status.ok()) return status;
  const auto archive = Download(content.study.name(), session);
  if (!archive.ok()) return archive.status();
  if (const absl::Status status = AddPoints(*archive, content.runs, session, bundle); !status.ok())
    return status;
  if (const absl::Status status = AddArchive(*archive, bundle); !status.ok()) return status;
  return bundle.Finish();
}

absl::StatusOr<ExitCode> ExecuteStudyBundle(const BundleOptions& options, Session& session) {
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  const auto content = ReadContent(*name, session);
  if (!content.ok()) return content.status();
  const absl::Status written =
      ReplaceFile(options.file, [&](std::ofstream& file) { return WriteBundle(*content, session, file); });
  if (!written.ok()) return written;
  session.Say(absl::StrCat("wrote ", options.file, " with ", content->study.name(), "; `scalelab verify ",
                           options.file, "` checks it without a server"));
  return ExitCode::kOk;
}

}  // namespace

void AddStudyBundle(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<BundleOptions>();
  CLI::App* command = study.add_subcommand(
      "bundle", "Write a finished study with raw data, figures and checksums to one file for other people");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  // In this command -o is the file, not the output format.
  command->add_option("-o,--file", options->file, "The tar file to write")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExecuteStudyBundle(*options, s); }; });
}

}  // namespace scalelab::client
