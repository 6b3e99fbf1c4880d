// The keys of the sections of a study file. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab {

// Returns the keys at and below a place of a study file, in the order of the schema: for "scaling" the section itself
// and "scaling.mode", "scaling.global_batch", ...; for "scaling.mode" only that key. The keys of an entry of a list are
// "measure.extract[].metric". Returns nothing if there is no such place. Default values and units are part of the help.
std::vector<v1::StudyKey> SectionKeys(absl::string_view place);

// Returns the names of the sections, and of all keys below them.
std::vector<std::string> SectionKeyNames();

}  // namespace scalelab
