// Builds the scheduler request for an allocation of a study. A pure function.
#pragma once

#include "scalelab/v1/study.pb.h"
#include "server/scheduler/scheduler.h"
#include "study/rules.h"

namespace scalelab::server {

// Returns the request for one job of this shape, without token and secret. The defaults of `spec` must
// be filled in.
JobRequest RequestFor(const v1::StudySpec& spec, const AllocationShape& shape);

}  // namespace scalelab::server
