// What a study asks the scheduler for. Pure.
#pragma once

#include "study/rules.h"
#include "scalelab/v1/study.pb.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// One job of this shape; its token and secret are the caller's to set. `spec` has its defaults filled in.
JobRequest RequestFor(const v1::StudySpec& spec, const AllocationShape& shape);

}  // namespace scalelab::server
