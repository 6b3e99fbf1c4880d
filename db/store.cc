#include "db/store.h"

namespace scalelab::db {

bool WriteBatch::empty() const {
  return studies.empty() && cell_values.empty() && cells.empty() && runs.empty() && allocations.empty() &&
         attempts.empty() && provenance.empty() && appends.empty() && epochs.empty() && summaries.empty() &&
         usage.empty() && usage_hours.empty() && !drain && notices.empty() && deleted_studies.empty() &&
         study_files.empty();
}

void WriteBatch::Clear() { *this = WriteBatch(); }

}  // namespace scalelab::db
