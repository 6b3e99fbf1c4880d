// Reads mappings and lists of a YAML tree, and keeps the positions and the problems of their parts. Internal to
// study files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "study/file/study_file.h"
#include "study/file/yaml_document.h"

namespace scalelab {

// An error at a position in the file.
struct Problem {
  Position at;
  std::string field;
  std::string sentence;
};

class TreeReader {
 public:
  // `file` must outlive this object. The positions of the parts are added to it.
  explicit TreeReader(StudyFile& file) : file_(file) {}

  StudyFile& file() { return file_; }
  // Adds a problem of the field `field`.
  void Add(Position at, const std::string& field, std::string sentence);
  std::vector<Problem> TakeProblems() { return std::move(problems_); }

  // Returns the path of a field: "matrix.engine".
  static std::string Path(const std::string& parent, absl::string_view name);

  // Returns the entries of a mapping without duplicate keys, and records their positions. Returns no entries
  // for an empty section. An error calls the node `what`.
  std::vector<const YamlEntry*> Entries(const YamlNode& node, Position at, const std::string& path,
                                        absl::string_view what);
  // Returns the items of a list, and records their positions. An error ends with `hint`.
  std::vector<YamlPtr> Items(const YamlNode& node, Position at, const std::string& path,
                             absl::string_view what, absl::string_view hint = "");

 private:
  StudyFile& file_;
  std::vector<Problem> problems_;
};

}  // namespace scalelab
