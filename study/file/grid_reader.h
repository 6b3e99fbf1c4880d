// Reads the sections of a study file with values of run parameters: fixed, matrix, zip and exclude. Internal to
// study files.
#pragma once

#include <string>
#include <utility>

#include "google/protobuf/repeated_ptr_field.h"
#include "google/protobuf/struct.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/file/tree_reader.h"

namespace scalelab {

class GridReader {
 public:
  using Axes = google::protobuf::RepeatedPtrField<scalelab::v1::Axis>;

  // A relative data_dir is relative to `directory`; with an empty `directory` it stays relative. `tree` must
  // outlive this object.
  GridReader(std::string directory, TreeReader& tree) : directory_(std::move(directory)), tree_(tree) {}

  // Reads a mapping of keys to single values.
  void ReadStruct(const YamlNode& node, Position at, const std::string& path, google::protobuf::Struct* out);
  // Reads a mapping of keys to lists of values or ranges.
  void ReadMatrix(const YamlNode& node, Position at, const std::string& path, Axes* axes);
  void ReadZip(const YamlNode& node, Position at);
  void ReadExclude(const YamlNode& node, Position at);

 private:
  void ReadAxis(const YamlEntry& entry, const std::string& name, const std::string& path, Axes* axes);
  // Reads {pow2: [FIRST, LAST]}.
  bool ReadRange(const YamlEntry& entry, const std::string& name, const std::string& path,
                 scalelab::v1::Axis* axis);
  // Reads a scalar, list or mapping without a fixed type, which is the value of the field `path` or a part of it.
  google::protobuf::Value ReadValue(const YamlNode& node, absl::string_view name, const std::string& path);
  // Adds a problem if `number`, a parameter of the user's own, is not exactly the whole number that the file
  // contains. The ranges of all other keys are so small that a double is exact.
  void CheckDigits(const YamlNode& node, double number, absl::string_view name, const std::string& path);
  std::string Absolute(const std::string& path) const;

  const std::string directory_;
  TreeReader& tree_;
};

}  // namespace scalelab
