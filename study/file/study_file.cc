#include "study/file/study_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/status.h"
#include "proto/utf8.h"
#include "study/file/overrides.h"
#include "study/file/study_reader.h"
#include "study/file/yaml_document.h"

namespace scalelab {
namespace {

constexpr int64_t kMaxFileBytes = 4 << 20;
constexpr absl::string_view kLocated = "scalelab/located";  // key of an empty payload

absl::Status Located(absl::Status status) {
  status.SetPayload(kLocated, absl::Cord());
  return status;
}

absl::Status WholeFile(absl::StatusCode code, const std::string& path, absl::string_view sentence) {
  return Located(MakeError(code, "INVALID_STUDY_FILE", absl::StrCat(path, ": ", sentence)));
}

absl::Status SystemError(const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) {
    return WholeFile(absl::StatusCode::kNotFound, path, "there is no such file");
  }
  absl::StatusCode code =
      error == EACCES ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kInvalidArgument;
  return WholeFile(code, path, absl::StrCat("the file cannot be read: ", std::strerror(error)));
}

absl::Status TooLarge(const std::string& path, absl::string_view size) {
  return WholeFile(absl::StatusCode::kInvalidArgument, path,
                   absl::StrCat("the file is ", size, "; a study file may have at most 4 MiB"));
}

// Returns the index of the first byte that is not UTF-8 text, or npos.
size_t FirstBinaryByte(const std::string& text) {
  size_t i = 0;
  while (i < text.size()) {
    unsigned char c = text[i];
    if (c < 0x20 && c != '\n' && c != '\r' && c != '\t') return i;
    size_t length = Utf8Length(text, i);
    if (length == 0) return i;
    i += length;
  }
  return std::string::npos;
}

// Reads a file, a pipe, for example `scalelab study submit <(generate)`, or for "-" standard input.
absl::StatusOr<std::string> ReadText(const std::string& path) {
  int fd = path == "-" ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(path, errno);
  struct stat st;
  if (fstat(fd, &st) == 0) {
    if (S_ISDIR(st.st_mode)) {
      close(fd);
      return WholeFile(absl::StatusCode::kInvalidArgument, path,
                       "this is a directory; give the path of a study file");
    }
    if (S_ISREG(st.st_mode) && st.st_size > kMaxFileBytes) {
      close(fd);
      return TooLarge(path, absl::StrFormat("%.1f MB", st.st_size / 1e6));
    }
  }
  std::string text;
  char buffer[65536];
  ssize_t n = 0;
  while (static_cast<int64_t>(text.size()) <= kMaxFileBytes) {
    n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, n);
  }
  int error = errno;
  close(fd);
  if (n < 0) return SystemError(path, error);
  if (static_cast<int64_t>(text.size()) > kMaxFileBytes) return TooLarge(path, "more than that");
  return text;
}

absl::Status CheckText(const std::string& text, const std::string& path) {
  if (size_t at = FirstBinaryByte(text); at != std::string::npos) {
    return WholeFile(
        absl::StatusCode::kInvalidArgument, path,
        absl::StrFormat("the file is not text (byte 0x%02X at offset %d); a study file is YAML in UTF-8",
                        static_cast<unsigned char>(text[at]), at));
  }
  return absl::OkStatus();
}

// Returns "FILE:LINE:COLUMN", "--set KEY", or the place of a default section.
std::string PlaceOf(const StudyFile& file, Position at) {
  if (at.line > 0) return absl::StrCat(file.path, ":", at.line, ":", at.column);
  const size_t number = static_cast<size_t>(-at.line);
  if (number < file.set.size()) return absl::StrCat("--set ", OverrideKey(file.set[number]));
  const size_t section = number - file.set.size();
  return section < file.defaults.size() ? file.defaults[section].place : file.path;
}

absl::Status InvalidFile(const StudyFile& file, std::vector<Problem> problems) {
  std::stable_sort(problems.begin(), problems.end(),
                   [](const Problem& a, const Problem& b) { return a.at < b.at; });
  std::vector<std::string> lines;
  std::vector<FieldViolation> violations;
  for (Problem& problem : problems) {
    lines.push_back(absl::StrCat(PlaceOf(file, problem.at), ": ", problem.sentence));
    violations.push_back({std::move(problem.field), std::move(problem.sentence)});
  }
  return Located(WithViolations(
      MakeError(absl::StatusCode::kInvalidArgument, "INVALID_STUDY_FILE", absl::StrJoin(lines, "\n")),
      std::move(violations)));
}

// Reads as much of the text as possible. Returns an error only if nothing can be read. Relative paths
// start at `directory`.
absl::StatusOr<StudyFile> ParseText(const std::string& text, const std::string& path,
                                    const std::string& directory, const std::vector<std::string>& set,
                                    const std::vector<DefaultSection>& defaults,
                                    std::vector<Problem>* problems) {
  if (const absl::Status status = CheckText(text, path); !status.ok()) return status;
  StudyFile file;
  file.path = path;
  file.set = set;
  file.text = text;
  YamlResult yaml = ParseYaml(text);
  if (yaml.root == nullptr) return InvalidFile(file, {{yaml.error_at, "", yaml.error}});
  if (yaml.root->kind == YamlNode::kNull) {
    return WholeFile(absl::StatusCode::kInvalidArgument, path,
                     "the file is empty; a study file starts with study: NAME");
  }
  if (yaml.root->kind != YamlNode::kMap) {
    return InvalidFile(file, {{yaml.root->at, "",
                               absl::StrCat("a study file is a mapping that starts with study: NAME, not ",
                                            ShowNode(*yaml.root))}});
  }
  absl::StatusOr<YamlPtr> root = WithOverrides(yaml.root, set);
  if (!root.ok())
    return Located(MakeError(absl::StatusCode::kInvalidArgument, "INVALID_STUDY_FILE",
                             std::string(root.status().message())));
  for (const DefaultSection& section : defaults) {
    const int line = -static_cast<int>(set.size() + file.defaults.size());
    absl::StatusOr<YamlPtr> with = WithDefault(*root, section.key, section.value, {line, 1});
    if (!with.ok())
      return WholeFile(absl::StatusCode::kInvalidArgument, section.place, with.status().message());
    if (*with == *root) continue;
    file.defaults.push_back(section);
    root = std::move(with);
  }
  *problems = ReadStudy(**root, directory, &file);
  return file;
}

absl::StatusOr<StudyFile> Parse(const std::string& path, const std::vector<std::string>& set,
                                const std::vector<DefaultSection>& defaults, std::vector<Problem>* problems) {
  const absl::StatusOr<std::string> text = ReadText(path);
  if (!text.ok()) return text.status();
  std::error_code ignored;  // without a working directory the path stays relative; the server then rejects it
  const std::filesystem::path directory = std::filesystem::absolute(path, ignored).parent_path();
  return ParseText(*text, path, directory.string(), set, defaults, problems);
}

// Returns the position of the longest prefix of `field` that occurs in the file.
Position Find(const StudyFile& file, absl::string_view field) {
  while (true) {
    auto found = file.positions.find(std::string(field));
    if (found != file.positions.end()) return found->second;
    size_t cut = field.find_last_of(".[");
    field = field.substr(0, cut == absl::string_view::npos ? 0 : cut);
    if (field.empty() && !file.positions.contains("")) return {};
  }
}

absl::string_view Section(absl::string_view field) { return field.substr(0, field.find_first_of(".[")); }

// Adds the violations in `status`. Leaves out violations that may be consequences of parts of the file that
// could not be read.
void AddSoundViolations(const StudyFile& file, const absl::Status& status, std::vector<Problem>* problems) {
  std::set<std::string, std::less<>> broken;
  for (const Problem& problem : *problems) broken.emplace(Section(problem.field));
  for (FieldViolation& violation : ViolationsOf(status)) {
    absl::string_view section = Section(violation.field);
    bool whole_entry = violation.field.find('.') == std::string::npos;
    bool about_cells = (section == "exclude" || section == "baseline") && whole_entry;
    if (broken.contains(section) || about_cells || !file.positions.contains(violation.field)) continue;
    problems->push_back({Find(file, violation.field), violation.field, violation.description});
  }
}

}  // namespace

absl::StatusOr<StudyFile> ReadStudyFile(const std::string& path, const std::vector<std::string>& set) {
  std::vector<Problem> problems;
  absl::StatusOr<StudyFile> file = Parse(path, set, {}, &problems);
  if (file.ok() && !problems.empty()) return InvalidFile(*file, std::move(problems));
  return file;
}

absl::StatusOr<StudyFile> ReadStudyText(const std::string& text, const std::string& name) {
  std::vector<Problem> problems;
  absl::StatusOr<StudyFile> file = ParseText(text, name, "", {}, {}, &problems);
  if (file.ok() && !problems.empty()) return InvalidFile(*file, std::move(problems));
  return file;
}

absl::Status Locate(const StudyFile& file, const absl::Status& status) {
  std::vector<FieldViolation> violations = ViolationsOf(status);
  if (violations.empty()) return status;
  std::vector<std::pair<Position, std::string>> lines;
  for (const FieldViolation& violation : violations) {
    Position at = Find(file, violation.field);
    lines.emplace_back(at, absl::StrCat(PlaceOf(file, at), ": ", violation.description));
    // Keep "and N more" last.
    if (violation.field.empty()) {
      lines.back() = {{std::numeric_limits<int>::max(), 1},
                      absl::StrCat(file.path, ": ", violation.description)};
    }
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  absl::Status located(status.code(), absl::StrJoin(lines, "\n", [](std::string* out, const auto& line) {
                         out->append(line.second);
                       }));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { located.SetPayload(url, payload); });
  return Located(std::move(located));
}

bool IsLocated(const absl::Status& status) { return status.GetPayload(kLocated).has_value(); }

absl::StatusOr<CheckedStudyFile> CheckStudyFile(const std::string& path, const std::vector<std::string>& set,
                                                const std::vector<DefaultSection>& defaults) {
  std::vector<Problem> problems;
  absl::StatusOr<StudyFile> file = Parse(path, set, defaults, &problems);
  if (!file.ok()) return file.status();
  absl::StatusOr<ExpandedStudy> study = ExpandStudy(file->spec);
  if (!problems.empty()) {
    if (!study.ok()) AddSoundViolations(*file, study.status(), &problems);
    return InvalidFile(*file, std::move(problems));
  }
  if (!study.ok()) return Locate(*file, study.status());
  return CheckedStudyFile{*std::move(file), *std::move(study)};
}

}  // namespace scalelab
