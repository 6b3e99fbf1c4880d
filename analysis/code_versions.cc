#include "analysis/code_versions.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::CodeSnapshot;
using scalelab::v1::CodeVersion;
using scalelab::v1::CurveSeries;

constexpr size_t kMostVersions = 4;  // versions that a note names
constexpr size_t kVersionDigits = 8;

const CodeSnapshot::File* FileOf(const CodeSnapshot& code, const std::string& path) {
  const auto file = std::find_if(code.files().begin(), code.files().end(),
                                 [&](const CodeSnapshot::File& one) { return one.path() == path; });
  return file == code.files().end() ? nullptr : &*file;
}

bool IsSame(const CodeSnapshot& a, const CodeSnapshot& b) {
  if (a.git_commit() != b.git_commit()) return false;
  if (a.has_git_dirty() && b.has_git_dirty() &&
      (a.git_dirty() != b.git_dirty() || a.diff_sha256() != b.diff_sha256()))
    return false;
  return std::all_of(a.files().begin(), a.files().end(), [&](const CodeSnapshot::File& file) {
    const CodeSnapshot::File* other = FileOf(b, file.path());
    return other == nullptr || other->sha256() == file.sha256();
  });
}

// Adds to `into` the facts that only `from` contains. Both describe the same version of the code.
void Merge(const CodeSnapshot& from, CodeSnapshot& into) {
  for (const CodeSnapshot::File& file : from.files()) {
    if (FileOf(into, file.path()) == nullptr) *into.add_files() = file;
  }
  if (into.has_git_dirty() || !from.has_git_dirty()) return;
  into.set_git_dirty(from.git_dirty());
  into.set_diff_sha256(from.diff_sha256());
  into.set_diff_path(from.diff_path());
}

std::string CommitText(const CodeSnapshot& code) {
  return code.git_commit().empty() ? "no commit"
                                   : absl::StrCat("commit ", code.git_commit().substr(0, kVersionDigits));
}

std::string ChangesText(const CodeSnapshot& code) {
  if (!code.has_git_dirty()) return "unknown changes";
  if (!code.git_dirty()) return "no changes";
  return absl::StrCat("changes ", code.diff_sha256().substr(0, kVersionDigits));
}

// Returns whether `text` returns different results for the versions.
template <class Text>
bool Differs(const google::protobuf::RepeatedPtrField<CodeVersion>& versions, const Text& text) {
  std::set<std::string> texts;
  for (const CodeVersion& version : versions) texts.insert(text(version.code()));
  return texts.size() > 1;
}

// Returns the note on a series whose runs executed several versions. Names only what differs.
std::string NoteOn(const google::protobuf::RepeatedPtrField<CodeVersion>& versions) {
  const bool commits = Differs(versions, CommitText), changes = Differs(versions, ChangesText);
  std::set<std::string> paths, differing;
  for (const CodeVersion& version : versions) {
    for (const CodeSnapshot::File& file : version.code().files()) paths.insert(file.path());
  }
  for (const std::string& path : paths) {
    std::set<std::string> hashes;
    for (const CodeVersion& version : versions) {
      if (const auto* file = FileOf(version.code(), path)) hashes.insert(file->sha256());
    }
    if (hashes.size() > 1) differing.insert(path);
  }
  std::vector<std::string> named;
  for (const CodeVersion& version : versions) {
    if (named.size() == kMostVersions) break;
    std::vector<std::string> parts;
    if (commits) parts.push_back(CommitText(version.code()));
    if (changes) parts.push_back(ChangesText(version.code()));
    for (const std::string& path : differing) {
      if (const auto* file = FileOf(version.code(), path))
        parts.push_back(
            absl::StrCat(path.substr(path.rfind('/') + 1), " ", file->sha256().substr(0, kVersionDigits)));
    }
    named.push_back(absl::StrCat(absl::StrJoin(parts, ", "), " (", version.runs(),
                                 version.runs() == 1 ? " run)" : " runs)"));
  }
  const size_t more = static_cast<size_t>(versions.size()) - named.size();
  return absl::StrCat("its runs executed ", versions.size(),
                      " versions of the program, so that their differences may come from the program: ",
                      absl::StrJoin(named, "; "), more > 0 ? absl::StrCat("; and ", more, " more") : "");
}

// Sets the versions of a series. `runs` has the number of runs by index into `codes`.
void SetVersions(const std::map<size_t, int>& runs, const std::vector<CodeSnapshot>& codes,
                 CurveSeries& series) {
  auto& versions = *series.mutable_code_versions();
  for (const auto& [index, count] : runs) {
    const CodeSnapshot& code = codes[index];
    auto version = std::find_if(versions.begin(), versions.end(),
                                [&](const CodeVersion& known) { return IsSame(known.code(), code); });
    if (version == versions.end()) {
      *versions.Add()->mutable_code() = code;
      version = versions.end() - 1;
    }
    Merge(code, *version->mutable_code());
    version->set_runs(version->runs() + count);
  }
  std::stable_sort(versions.begin(), versions.end(),
                   [](const CodeVersion& a, const CodeVersion& b) { return a.runs() > b.runs(); });
  if (versions.size() > 1) series.add_notes(NoteOn(versions));
}

}  // namespace

void AddCodeVersions(const std::vector<db::CellRow>& cells, const std::vector<db::CurveRow>& rows,
                     const CurvePlaces& places, const RunCodes& codes,
                     scalelab::v1::GetCurveResponse& curve) {
  if (codes.of_run.empty()) return;
  // A cell is part of several series if its runs have different fingerprints.
  std::unordered_map<int64_t, std::vector<int>> series_of;  // by cell id
  for (int i = 0; i < curve.series_size(); ++i) {
    for (const size_t cell : places.series[i].cells) series_of[cells[cell].id].push_back(i);
  }
  // Number of runs by series, then by index of the code.
  std::vector<std::map<size_t, int>> runs(curve.series_size());
  for (const db::CurveRow& row : rows) {
    const auto series = series_of.find(row.cell_id);
    const auto code = codes.of_run.find(row.run_id);
    if (row.state != db::RunState::kSucceeded || series == series_of.end() || code == codes.of_run.end())
      continue;
    for (const int i : series->second) {
      if (curve.series(i).fingerprint() == row.fingerprint) ++runs[i][code->second];
    }
  }
  for (int i = 0; i < curve.series_size(); ++i) SetVersions(runs[i], codes.codes, *curve.mutable_series(i));
}

}  // namespace scalelab::analysis
