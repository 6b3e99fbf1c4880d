// Adds the notifications of a study to the write batch that stores the change that they report. The
// functions are pure.
#pragma once

#include "db/store.h"
#include "scalelab/v1/study.pb.h"
#include "server/core/state.h"

namespace scalelab::server {

// Adds the notifications of the end of a study, which has become final, if its specification requests them.
void AddEndNotices(const LiveStudy& study, db::WriteBatch& batch);
// Adds the notifications of the first failure of a study, if its specification requests them. `run` has failed at `now`.
// Later calls add rows with the same keys, which the store leaves out.
void AddFailureNotices(const LiveStudy& study, const db::RunRow& run, db::Micros now, db::WriteBatch& batch);

}  // namespace scalelab::server
