// The ids of the rows of an archive, which a restore replaces by new ones.
#pragma once

#include <array>
#include <cstdint>

namespace scalelab::db {

// What is numbered anew in the database that an archive is restored into.
enum class Numbered { kNothing, kStudy, kCell, kRun, kAllocation, kAttempt, kSeries };
inline constexpr int kNumbered = 7;

// A number of ids by Numbered.
using IdCounts = std::array<int64_t, kNumbered>;
// The first id of each kind, by Numbered, that a restore may use; those after it, as many as ArchiveHead::ids, must be free
// too. Series have no entry: the database chooses their ids.
using FirstIds = std::array<int64_t, kNumbered>;

}  // namespace scalelab::db
