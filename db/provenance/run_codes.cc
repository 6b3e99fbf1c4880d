#include "db/provenance/run_codes.h"

#include <utility>

#include "db/reads.h"
#include "db/sqlite/return_if_error.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

absl::StatusOr<std::vector<RunCode>> ListRunCodes(Store& store, int64_t study_id) {
  std::vector<RunCode> codes;
  const absl::Status read = store.ReadRows([&](Database& db) -> absl::Status {
    int64_t first = 0, last = -1;
    SCALELAB_RETURN_IF_ERROR(RunRange(db, study_id, first, last));
    // Use CASE, because json_extract fails for a text that is not JSON.
    Statement all(db,
                  "SELECT s.run_id, CASE WHEN json_valid(p.json) THEN json_extract(p.json, '$[0].code') END "
                  "FROM run_summary s JOIN provenance p ON p.attempt_id = s.attempt_id "
                  "WHERE s.run_id BETWEEN ? AND ? ORDER BY s.run_id");
    all.Bind(first, last);
    while (all.Step()) {
      RunCode code;
      all.Read(code.run_id, code.json);
      if (!code.json.empty()) codes.push_back(std::move(code));
    }
    return all.status();
  });
  if (!read.ok()) return read;
  return codes;
}

}  // namespace scalelab::db
