// Checks and defaults of a study specification, except for its grid. Internal to this library.
#pragma once

#include "scalelab/v1/study.pb.h"
#include "study/values.h"

namespace scalelab {

// Checks name, scaling, lr, repeats, seed, measure, order, resources, slurm, retry, limits, allocation,
// on_unusable and priority.
void CheckSections(const scalelab::v1::StudySpec& spec, Violations* violations);

// Fills in the defaults of those sections.
void FillDefaults(scalelab::v1::StudySpec* spec);

}  // namespace scalelab
