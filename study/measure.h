// Checks the section `measure`, and sets the run parameters that follow from it. Internal to this library.
#pragma once

#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/values.h"

namespace scalelab {

// Makes the checks of the section that do not depend on engines.
void CheckMeasure(const scalelab::v1::Measure& measure, Violations* violations);

// Sets the fields of the run that follow from the section. `measure` has all defaults.
void SetMeasure(const scalelab::v1::Measure& measure, scalelab::v1::RunSpec* run);

}  // namespace scalelab
