// From a YAML tree to a StudySpec. Internal to study files.
#pragma once

#include <string>
#include <vector>

#include "study/file/study_file.h"
#include "study/file/yaml_document.h"

namespace scalelab::client {

// Something that is wrong at a place of the file.
struct Problem {
  Position at;
  std::string field;
  std::string sentence;
};

// Reads what it can into file->spec and file->positions, and says what it could not. `directory` is what a
// relative data_dir is relative to.
std::vector<Problem> ReadStudy(const YamlNode& root, const std::string& directory, StudyFile* file);

}  // namespace scalelab::client
