// The parts of a study specification that are not its grid: checks and defaults. Internal to this room.
#pragma once

#include "study/values.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab {

// Checks name, scaling, lr, repeats, seed, measure, order, resources, slurm, retry, limits, allocation and
// priority.
void CheckSections(const scalelab::v1::StudySpec& spec, Violations* violations);

// Fills in the defaults of those sections.
void FillDefaults(scalelab::v1::StudySpec* spec);

}  // namespace scalelab
