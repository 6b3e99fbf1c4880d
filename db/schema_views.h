// The views for users, as parts of the migrations: names instead of numbers, times as text, one row per point.
#pragma once

#include <string>

namespace scalelab::db {

// Returns the SQL of the views of step 2. It never changes.
std::string FirstViews();
// Returns the SQL that replaces them in step 3: the points of frames, and no rows of deleted studies.
std::string ViewsOfFrames();
// Returns the SQL of step 5: the view of runs with keys from cell_value, and a view of cells.
std::string ViewsOfCellValues();
// Returns the SQL of step 7: the view of runs with the state SKIPPED.
std::string ViewsOfSkippedRuns();
// Returns the SQL of step 8: the views of runs and attempts with the cause NOISY.
std::string ViewsOfNoisyAttempts();
// Returns the SQL of step 9: the view of points with those in blocks.
std::string ViewsOfBlocks();
// Returns the SQL of step 10: the view of attempts with their throughput and epoch time.
std::string ViewsOfAttemptResults();

}  // namespace scalelab::db
