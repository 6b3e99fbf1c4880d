// Study files from specifications: the reverse of study/file.
#pragma once

#include <string>

#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// Returns a study file that means the same as `spec`. Comments, anchors and the order of keys in the submitted file are not known; relative
// paths are absolute.
std::string StudyYaml(const scalelab::v1::StudySpec& spec);

}  // namespace scalelab::client
