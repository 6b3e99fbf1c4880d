// What a study measures: the checks of `measure`, and what it means for runs. Internal to this library.
#pragma once

#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/values.h"

namespace scalelab {

// Checks the section without its relation to engines.
void CheckMeasure(const scalelab::v1::Measure& measure, Violations* violations);

// Sets the fields of the run that follow from the section. `measure` has all defaults.
void SetMeasure(const scalelab::v1::Measure& measure, scalelab::v1::RunSpec* run);

}  // namespace scalelab
