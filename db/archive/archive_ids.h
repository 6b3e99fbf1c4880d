// The ids of the rows of an archive, which a restore replaces by new ones.
#pragma once

#include <array>
#include <cstdint>

namespace scalelab::db {

// The kinds of rows that get new ids in the database into which an archive is restored.
enum class Numbered { kNothing, kStudy, kCell, kRun, kAllocation, kAttempt, kSeries };
inline constexpr int kNumbered = 7;

// A number of ids for each kind; the index is the value of Numbered.
using IdCounts = std::array<int64_t, kNumbered>;
// The first id of each kind that a restore may use; the index is the value of Numbered. A restore uses as
// many consecutive ids as ArchiveHead::ids has for the kind; all of them must be free. Series have no entry:
// the database chooses their ids.
using FirstIds = std::array<int64_t, kNumbered>;

}  // namespace scalelab::db
