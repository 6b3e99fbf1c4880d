#include "client/bundle/bundle_figures.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <set>
#include <sstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/bundle/bundle_data.h"
#include "client/bundle/file_comparison.h"
#include "client/export/data_files.h"
#include "client/export/study_tables.h"
#include "client/export/study_yaml.h"
#include "db/store.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/curves/study_curve.h"
#include "server/runs/stored_runs.h"

namespace scalelab::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::DefaultFieldComparator;
using google::protobuf::util::MessageDifferencer;
using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::GetCurveResponse;

constexpr double kFraction = 1e-9, kMargin = 1e-12;
constexpr size_t kMostDifferences = 20;

// Counts the numbers of a message.
int64_t CountNumbers(const Message& message) {
  const auto* values = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  values->ListFields(message, &fields);
  int64_t count = 0;
  for (const FieldDescriptor* field : fields) {
    const int size = field->is_repeated() ? values->FieldSize(message, field) : 1;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < size; ++i) {
        count += CountNumbers(field->is_repeated() ? values->GetRepeatedMessage(message, field, i)
                                                   : values->GetMessage(message, field));
      }
    } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
      count += size;
    }
  }
  return count;
}

// Removes fields that cannot be computed from the bundle alone: the name of the study, the notes, and the
// counts of concurrent attempts.
void KeepFigures(GetCurveResponse& curve) {
  curve.clear_study();
  for (CurveSeries& series : *curve.mutable_series()) {
    series.clear_notes();
    for (CurvePoint& point : *series.mutable_points()) {
      point.clear_notes();
      point.clear_concurrent_attempts();
      point.clear_most_concurrent_attempts();
    }
  }
}

std::vector<std::string> DifferencesOf(const GetCurveResponse& claimed, const GetCurveResponse& computed) {
  DefaultFieldComparator comparator;
  comparator.set_float_comparison(DefaultFieldComparator::APPROXIMATE);
  comparator.set_treat_nan_as_equal(true);
  comparator.SetDefaultFractionAndMargin(kFraction, kMargin);
  MessageDifferencer differencer;
  differencer.set_field_comparator(&comparator);
  std::string report;
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(claimed, computed)) return {};
  std::vector<std::string> differences;
  for (const absl::string_view line : absl::StrSplit(report, '\n', absl::SkipEmpty())) {
    differences.push_back(absl::StrCat("curve.json differs from the raw data: ", line));
    if (differences.size() == kMostDifferences) break;
  }
  return differences;
}

// Removes the times to the accuracy of cells in which not every repeat reached it. Older versions show the mean of the
// repeats that reached it, and this version shows none. Returns a sentence about each.
std::vector<std::string> RemovePartialTimes(const GetCurveResponse& computed, GetCurveResponse& claimed) {
  std::vector<std::string> removed;
  for (int s = 0; s < std::min(computed.series_size(), claimed.series_size()); ++s) {
    const CurveSeries& series = computed.series(s);
    CurveSeries& claims = *claimed.mutable_series(s);
    for (int p = 0; p < std::min(series.points_size(), claims.points_size()); ++p) {
      const auto& target = series.points(p).time_to_target();
      if (target.reached() == 0 || target.reached() == target.n()) continue;
      if (!claims.points(p).has_time_to_accuracy()) continue;
      claims.mutable_points(p)->clear_time_to_accuracy();
      removed.push_back(absl::StrCat("series[", s, "].points[", p,
                                     "].time_to_accuracy of an older version: the mean of the ",
                                     target.reached(), " of ", target.n(), " repeats that reached it"));
    }
  }
  return removed;
}

// Removes the first record of a CSV text (RFC 4180) and returns its fields.
std::vector<std::string> TakeRecord(absl::string_view& csv) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  size_t i = 0;
  for (; i < csv.size() && (quoted || csv[i] != '\n'); ++i) {
    const char c = csv[i];
    if (c == '"' && quoted && absl::StartsWith(csv.substr(i + 1), "\"")) {
      fields.back().push_back(csv[++i]);
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back().push_back(c);
    }
  }
  csv.remove_prefix(std::min(i + 1, csv.size()));
  return fields;
}

// Returns the columns of a CSV file.
std::vector<std::string> HeaderOf(absl::string_view csv) { return TakeRecord(csv); }

// Returns the names of the files code-*.diff that are no difference of the program from its git commits.
std::vector<std::string> OtherCode(const BundleReader& bundle, const GetCurveResponse& curve) {
  std::set<std::string> known;
  for (const CurveSeries& series : curve.series()) {
    for (const auto& version : series.code_versions()) known.insert(version.code().diff_sha256());
  }
  std::vector<std::string> others;
  for (const auto& [name, entry] : bundle.entries()) {
    if (name.starts_with("code-") && name.ends_with(".diff") && !known.contains(entry.sha256))
      others.push_back(name);
  }
  return others;
}

absl::Status NoSpace(const std::string& path) {
  return absl::UnknownError(
      absl::StrCat("cannot write ", path, ": is the disk full? Set TMPDIR to a directory with space"));
}

absl::Status CopyArchive(BundleReader& bundle, const std::string& path) {
  std::ofstream copy(path, std::ios::binary);
  const absl::Status status = bundle.Read(kBundleArchive, [&copy, &path](absl::string_view piece) {
    copy.write(piece.data(), static_cast<std::streamsize>(piece.size()));
    return copy ? absl::OkStatus() : NoSpace(path);
  });
  copy.close();
  if (!status.ok()) return status;
  return copy ? absl::OkStatus() : NoSpace(path);
}

// Returns the numbers of the study and of its first run. Each record of runs.csv after its header begins with the name
// of a run.
FirstNumbers FirstNumbersOf(absl::string_view runs) {
  TakeRecord(runs);
  return ParseFirstRun(runs.substr(0, runs.find(','))).value_or(FirstNumbers());
}

// Compares a file of the bundle with what `write` writes.
absl::Status CompareFile(BundleReader& bundle, const std::string& name,
                         const std::function<absl::Status(std::ostream&)>& write, FigureCheck& check) {
  const auto file = bundle.entries().find(name);
  if (file == bundle.entries().end()) {
    check.not_compared.push_back(absl::StrCat(name, ", which this bundle does not have"));
    return absl::OkStatus();
  }
  FileComparison comparison(bundle, file->second);
  std::ostream text(&comparison);
  if (const absl::Status status = write(text); !status.ok()) return status;
  const auto line = comparison.FirstDifference();
  if (!line.ok()) return line.status();
  if (*line > 0)
    check.differences.push_back(absl::StrCat(name, " differs from the raw data in line ", *line));
  return absl::OkStatus();
}

// Returns the table with the columns of these names, in this order.
DataTable WithColumns(DataTable table, const std::vector<std::string>& columns) {
  std::vector<size_t> kept;
  for (const std::string& column : columns) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), column);
    if (found != table.columns.end()) kept.push_back(static_cast<size_t>(found - table.columns.begin()));
  }
  return SelectColumns(std::move(table), std::move(kept));
}

// Makes the tables of runs and points and the provenance again, and compares them with the files. `runs` is the
// content of runs.csv.
absl::Status CompareData(BundleReader& bundle, db::Store& store, int64_t study_id, absl::string_view runs,
                         FigureCheck& check) {
  const auto computed = server::ReadStudyRuns(store, study_id);
  if (!computed.ok()) return computed.status();
  check.runs = static_cast<int64_t>(computed->size());
  const absl::Status of_runs = CompareFile(
      bundle, kBundleRuns,
      [&](std::ostream& out) { return WriteCsv(WithColumns(RunData(*computed), HeaderOf(runs)), out); },
      check);
  if (!of_runs.ok()) return of_runs;
  DataTable points = ArchivedPoints(store, study_id);
  points.rows = [rows = points.rows, &check](const DataSink& sink) {
    return rows([&](const std::vector<DataCell>& row) {
      ++check.points;
      return sink(row);
    });
  };
  const absl::Status of_points = CompareFile(
      bundle, kBundlePoints, [&](std::ostream& out) { return WriteCsv(points, out); }, check);
  if (!of_points.ok()) return of_points;
  return CompareFile(
      bundle, kBundleProvenance,
      [&](std::ostream& out) {
        out << ProvenanceText(*computed);
        return absl::OkStatus();
      },
      check);
}

}  // namespace

std::string CurveTableText(const GetCurveResponse& curve, const std::vector<std::string>& columns) {
  DataTable table = CurveData(curve);
  if (!columns.empty()) table = WithColumns(std::move(table), columns);
  std::ostringstream out;
  (void)WriteCsv(table, out);  // writing to a string does not fail
  return out.str();
}

absl::StatusOr<FigureCheck> CheckFigures(BundleReader& bundle) {
  const auto text = bundle.Read(kBundleCurve);
  if (!text.ok()) return text.status();
  const auto runs = bundle.Read(kBundleRuns);
  if (!runs.ok()) return runs.status();
  const FirstNumbers first = FirstNumbersOf(*runs);
  const auto directory = TemporaryDirectory::Make();
  if (!directory.ok()) return directory.status();
  const std::string archive = directory->path() + "/archive";
  if (const absl::Status status = CopyArchive(bundle, archive); !status.ok()) return status;
  const int fd = open(archive.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::UnknownError(absl::StrCat("cannot read ", archive, ": ", std::strerror(errno)));
  const absl::Cleanup closer = [fd] { close(fd); };
  const auto store = RestoreArchive(fd, directory->path(), first);
  if (!store.ok()) return store.status();
  GetCurveResponse claimed;
  if (const auto parsed = google::protobuf::util::JsonStringToMessage(*text, &claimed); !parsed.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        kBundleCurve,
        " of the bundle has fields that this version of scalelab does not have; verify it with the ",
        "version that ", kBundleManifest, " names: ", std::string(parsed.message())));
  }
  const auto study = (*store)->GetStudy(first.study);
  if (!study.ok()) return study.status();
  GetCurveResponse computed;
  const absl::Status made = server::MakeStudyCurve(
      **store, *study, /*factors=*/true, [] { return false; }, &computed);
  if (!made.ok()) return made;

  FigureCheck check;
  google::protobuf::util::JsonParseOptions lenient;
  lenient.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(study->spec, &check.spec, lenient).ok())
    return absl::DataLossError("the archive of the bundle has no readable specification");
  const auto table = bundle.Read(kBundleCurveTable);
  const auto spec = bundle.Read(kBundleSpec);
  if (!table.ok()) return table.status();
  if (!spec.ok()) return spec.status();
  if (*table != CurveTableText(claimed, HeaderOf(*table)))
    check.differences.emplace_back("curve.csv differs from curve.json");
  if (*spec != StudyYaml(check.spec))
    check.differences.emplace_back("study.yaml differs from the specification of the archive");
  for (const std::string& name : OtherCode(bundle, claimed))
    check.differences.push_back(name + " has a SHA-256 that curve.json does not name");
  check.not_compared = RemovePartialTimes(computed, claimed);
  KeepFigures(claimed);
  KeepFigures(computed);
  check.figures = CountNumbers(computed);
  if (const absl::Status status = CompareData(bundle, **store, first.study, *runs, check); !status.ok())
    return status;
  for (std::string& difference : DifferencesOf(claimed, computed))
    check.differences.push_back(std::move(difference));
  return check;
}

}  // namespace scalelab::client
