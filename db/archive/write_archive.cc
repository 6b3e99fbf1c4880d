#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "db/archive/archive.h"
#include "db/deletion.h"
#include "db/sqlite/return_if_error.h"
#include "db/sqlite_store.h"

namespace scalelab::db {
namespace {

absl::Status CheckArchivable(Database& db, int64_t study_id) {
  Statement find(db,
                 "SELECT state, EXISTS (SELECT 1 FROM removal WHERE kind = 1 AND study_id = study.id) FROM "
                 "study WHERE id = ? AND" SCALELAB_VISIBLE_STUDY("study.id"));
  find.Bind(study_id);
  StudyState state{};
  bool removing = false;
  const bool found = find.Step();
  if (found) find.Read(state, removing);
  SCALELAB_RETURN_IF_ERROR(find.status());
  if (!found) return absl::NotFoundError(absl::StrCat("there is no study ", study_id));
  if (!IsFinal(state)) {
    return absl::FailedPreconditionError(
        absl::StrCat("study ", study_id,
                     " is not final, and only final studies can be archived; wait for its end with "
                     "`scalelab study wait ",
                     study_id, "`, or cancel it"));
  }
  if (removing) {
    return absl::UnavailableError(
        absl::StrCat("retention is removing points of study ", study_id, "; try again in a minute"));
  }
  return absl::OkStatus();
}

absl::Status WriteTable(Database& db, size_t index, int64_t study_id, bool publish, ArchiveWriter& writer) {
  const ArchiveTable& table = ArchiveTables()[index];
  ArchiveRow row{index, std::vector<Value>(table.columns.size())};
  const std::string& select = publish ? table.published : table.select;
  if (select.empty()) return absl::OkStatus();
  Statement rows(db, select.c_str());
  rows.Bind(study_id);
  while (rows.Step()) {
    for (size_t i = 0; i < row.values.size(); ++i) row.values[i] = rows.ValueAt(static_cast<int>(i));
    SCALELAB_RETURN_IF_ERROR(rows.status());
    SCALELAB_RETURN_IF_ERROR(writer.WriteRow(row));
  }
  return rows.status();
}

}  // namespace

absl::StatusOr<int> OpenUnnamedFile(Store& store) {
  std::string folder;
  const absl::Status status = store.ReadRows([&folder](Database& db) {
    folder = std::filesystem::path(db.path()).parent_path().string();
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  if (folder.empty()) folder = ".";
  int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {  // a network filesystem
    std::string path = absl::StrCat(folder, "/archive-XXXXXX");
    fd = mkostemp(path.data(), O_CLOEXEC);
    if (fd >= 0) unlink(path.c_str());
  }
  if (fd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create a file in ", folder, ": ", std::strerror(errno)));
  }
  return fd;
}

absl::Status WriteArchive(Store& store, int64_t study_id, const Seal& seal, int fd, bool publish) {
  return store.ReadRows([&](Database& db) -> absl::Status {
    Transaction transaction(db, Transaction::Kind::kRead);
    SCALELAB_RETURN_IF_ERROR(transaction.status());
    SCALELAB_RETURN_IF_ERROR(CheckArchivable(db, study_id));
    ArchiveWriter writer(fd);
    SCALELAB_RETURN_IF_ERROR(writer.WriteHeader(NewestSchema()));
    for (size_t i = 0; i < ArchiveTables().size(); ++i)
      SCALELAB_RETURN_IF_ERROR(WriteTable(db, i, study_id, publish, writer));
    return writer.Finish(seal);
  });
}

}  // namespace scalelab::db
