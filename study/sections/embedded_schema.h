// The JSON Schema of a study file (deploy/schema/study.schema.json) as it was when the program was built.
#pragma once

#include "absl/strings/string_view.h"

namespace scalelab {

absl::string_view EmbeddedStudySchema();

}  // namespace scalelab
