// Words an advice on world sizes as one paragraph. A pure function.
#pragma once

#include <string>

#include "analysis/comparison/advise.h"
#include "scalelab/v1/analysis.pb.h"

namespace scalelab::analysis {

// Returns the paragraph for an advice that is complete except for its text. `measured_hours`: the hours are those of the whole
// training; otherwise they are relative to the smallest world size.
std::string AdviceText(const scalelab::v1::Advice& advice, const AdviceOptions& options, bool measured_hours);

}  // namespace scalelab::analysis
