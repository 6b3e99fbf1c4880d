// Converts specifications to study files, the reverse of study/file.
#pragma once

#include <string>

#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// Returns a study file with the meaning of `spec`. The specification does not contain the comments,
// the anchors and the order of keys of the submitted file. Paths that were relative in the submitted
// file are absolute.
std::string StudyYaml(const scalelab::v1::StudySpec& spec);

}  // namespace scalelab::client
