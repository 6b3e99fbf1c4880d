#include "db/study_files/study_files.h"

#include "db/deletion.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

absl::StatusOr<std::string> GetStudyFile(Store& store, int64_t study_id) {
  std::string text;
  const absl::Status status = store.ReadRows([&](Database& db) -> absl::Status {
    Statement find(db, "SELECT text FROM study_file WHERE study_id = ? AND" SCALELAB_VISIBLE_STUDY(
                           "study_file.study_id"));
    find.Bind(study_id);
    if (find.Step()) find.Read(text);
    return find.status();
  });
  if (!status.ok()) return status;
  return text;
}

}  // namespace scalelab::db
