// Adds the notifications of a study to the write batch that stores the change that they report. The
// functions are pure.
#pragma once

#include <array>
#include <cstdint>

#include "db/store.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::server {

// The parts of a study that notifications contain. The parts must outlive this object.
struct NoticedStudy {
  const db::StudyRow& row;
  const v1::StudySpec& spec;
  const std::array<int64_t, 7>& counts;  // runs by db::RunState
};

// Adds the notifications of the end of a study, which has become final, if its specification requests them.
void AddEndNotices(const NoticedStudy& study, db::WriteBatch& batch);
// Adds the notifications of the first failure of a study, if its specification requests them. `run` has failed at `now`.
// Later calls add rows with the same keys, which the store leaves out.
void AddFailureNotices(const NoticedStudy& study, const db::RunRow& run, db::Micros now,
                       db::WriteBatch& batch);

}  // namespace scalelab::server
