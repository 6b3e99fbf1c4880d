// The section `checkpoint` of a study file. Internal to study files.
#pragma once

#include "study/file/tree_reader.h"

namespace scalelab {

// Reads `checkpoint: {every: 10m, keep: 2}` into keys of `fixed`. Must be called after the sections that may have
// the same keys were read, because a key in two sections is a problem.
void ReadCheckpoint(const YamlEntry& section, TreeReader& tree);

}  // namespace scalelab
