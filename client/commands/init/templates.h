// The templates of study files.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab::client {

struct StudyTemplate {
  absl::string_view name;
  absl::string_view summary;
  absl::string_view text;       // a study file with comments
  absl::string_view file = {};  // a file that the study needs in the same directory; empty: none
  absl::string_view file_text = {};
};

const std::vector<StudyTemplate>& StudyTemplates();

}  // namespace scalelab::client
