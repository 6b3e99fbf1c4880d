#include "db/provenance/run_codes.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "db/reads.h"
#include "db/sqlite/return_if_error.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

absl::StatusOr<RunCodes> ListRunCodes(Store& store, int64_t study_id) {
  RunCodes codes;
  const absl::Status read = store.ReadRows([&](Database& db) -> absl::Status {
    codes = {};
    std::unordered_map<std::string, size_t> known;
    int64_t first = 0, last = -1;
    SCALELAB_RETURN_IF_ERROR(RunRange(db, study_id, first, last));
    // Use CASE, because json_extract fails for a text that is not JSON.
    Statement all(db,
                  "SELECT s.run_id, CASE WHEN json_valid(p.json) THEN json_extract(p.json, '$[0].code') END "
                  "FROM run_summary s JOIN provenance p ON p.attempt_id = s.attempt_id "
                  "WHERE s.run_id BETWEEN ? AND ? ORDER BY s.run_id");
    all.Bind(first, last);
    while (all.Step()) {
      int64_t run_id = 0;
      std::string json;
      all.Read(run_id, json);
      if (json.empty()) continue;
      const auto [it, is_new] = known.try_emplace(std::move(json), codes.texts.size());
      if (is_new) codes.texts.push_back(it->first);
      codes.runs.push_back({run_id, it->second});
    }
    return all.status();
  });
  if (!read.ok()) return read;
  return codes;
}

}  // namespace scalelab::db
