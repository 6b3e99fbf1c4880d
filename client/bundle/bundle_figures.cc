#include "client/bundle/bundle_figures.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <sstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/export/data_files.h"
#include "client/export/study_tables.h"
#include "client/export/study_yaml.h"
#include "db/archive/archive.h"
#include "db/sqlite_store.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/curves/study_curve.h"

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

// Returns the columns of a CSV file. Names of columns need no quotes.
std::vector<std::string> HeaderOf(absl::string_view csv) {
  return absl::StrSplit(absl::StripTrailingAsciiWhitespace(csv.substr(0, csv.find('\n'))), ',');
}

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

absl::StatusOr<std::string> MakeTemporaryDirectory() {
  std::error_code unknown;
  std::string pattern = (std::filesystem::temp_directory_path(unknown) / "scalelab-verify-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    return absl::UnknownError(absl::StrCat("cannot create ", pattern, ": ", std::strerror(errno),
                                           "; set TMPDIR to a directory with space"));
  return pattern;
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

// Stores the study of the archive as number 1.
absl::Status RestoreInto(db::Store& store, const std::string& archive) {
  const int fd = open(archive.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::UnknownError(absl::StrCat("cannot read ", archive, ": ", std::strerror(errno)));
  const absl::Cleanup closer = [fd] { close(fd); };
  auto head = db::CheckArchive(fd);
  if (!head.ok()) return head.status();
  db::FirstIds first;
  first.fill(1);
  db::Restore restore(store, fd, *std::move(head), first);
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = restore.Step();
  return more.status();
}

}  // namespace

std::string CurveTableText(const GetCurveResponse& curve, const std::vector<std::string>& columns) {
  DataTable table = CurveData(curve);
  std::vector<size_t> kept;
  for (const std::string& column : columns) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), column);
    if (found != table.columns.end()) kept.push_back(static_cast<size_t>(found - table.columns.begin()));
  }
  if (!columns.empty()) table = SelectColumns(std::move(table), std::move(kept));
  std::ostringstream out;
  (void)WriteCsv(table, out);  // writing to a string does not fail
  return out.str();
}

absl::StatusOr<FigureCheck> CheckFigures(BundleReader& bundle) {
  const auto text = bundle.Read(kBundleCurve);
  if (!text.ok()) return text.status();
  const auto directory = MakeTemporaryDirectory();
  if (!directory.ok()) return directory.status();
  const absl::Cleanup remover = [&directory] {
    std::error_code unknown;
    std::filesystem::remove_all(*directory, unknown);
  };
  const std::string archive = *directory + "/archive";
  if (const absl::Status status = CopyArchive(bundle, archive); !status.ok()) return status;
  const auto store = db::OpenSqliteStore({*directory + "/study.db"});
  if (!store.ok()) return store.status();
  if (const absl::Status status = RestoreInto(**store, archive); !status.ok()) return status;
  GetCurveResponse claimed;
  if (const auto parsed = google::protobuf::util::JsonStringToMessage(*text, &claimed); !parsed.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        kBundleCurve,
        " of the bundle has fields that this version of scalelab does not have; verify it with the ",
        "version that ", kBundleManifest, " names: ", std::string(parsed.message())));
  }
  const auto study = (*store)->GetStudy(1);
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
  for (std::string& difference : DifferencesOf(claimed, computed))
    check.differences.push_back(std::move(difference));
  return check;
}

}  // namespace scalelab::client
