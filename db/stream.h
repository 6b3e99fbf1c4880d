// How a part of a rank's event file changes the row of its stream. The store and the coordinator's memory
// both use this function, so that they cannot disagree.
#pragma once

#include "db/records.h"

namespace scalelab::db {

// Applies `append` to `stream`. Keeps the first error and the first malformed line of a stream: the first
// error causes those that follow. `append` must begin at the stream's position; the caller checks it.
void Apply(StreamRow& stream, const StreamAppend& append);

}  // namespace scalelab::db
