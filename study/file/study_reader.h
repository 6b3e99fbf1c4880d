// Converts a YAML tree to a StudySpec. Internal to study files.
#pragma once

#include <string>
#include <vector>

#include "study/file/study_file.h"
#include "study/file/tree_reader.h"
#include "study/file/yaml_document.h"

namespace scalelab {

// Reads the valid parts of the tree into file->spec and file->positions. Returns the problems of the other
// parts. A relative data_dir is relative to `directory`; with an empty `directory` it stays relative.
std::vector<Problem> ReadStudy(const YamlNode& root, const std::string& directory, StudyFile* file);

}  // namespace scalelab
