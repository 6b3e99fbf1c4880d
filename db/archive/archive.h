// Writes a final study with everything that belongs to it to a file, and restores the study of such a file.
// All functions use a Store and return its errors. The files of attempts are not part of an archive.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/archive/archive_file.h"
#include "db/archive/archive_ids.h"
#include "db/archive/archive_tables.h"
#include "db/store.h"

namespace scalelab::db {

// Opens a file without a name next to the database. It vanishes when the returned descriptor is closed.
absl::StatusOr<int> OpenUnnamedFile(Store& store);

// Writes the archive of a study to `fd`. Reads all rows in one transaction. If `publish` is set, the archive
// is for other people: it has no notifications, and random tokens replace the tokens of attempts and
// allocations. NOT_FOUND if there is no such study, FAILED_PRECONDITION if it is not final, UNAVAILABLE if
// retention is removing its points.
absl::Status WriteArchive(Store& store, int64_t study_id, const Seal& seal, int fd, bool publish = false);

// Where an imported study comes from: the service, the study's name there, and the file.
struct Origin {
  std::string server, study, sha256;
  std::string imported_by;
  Micros imported = 0;
};
// Returns nothing if the study was not imported.
absl::StatusOr<std::optional<Origin>> GetOrigin(Store& store, int64_t study_id);
// Returns the id of the stored study that has the name, the owner and the time of creation of an archive's
// study; 0 if there is none.
absl::StatusOr<int64_t> FindArchived(Store& store, const StudyRow& study);

// The study of an archive, and what its rows need.
struct ArchiveHead {
  StudyRow study;
  IdCounts ids{};             // number of new ids of each kind
  int64_t content_bytes = 0;  // size without compression
  std::string seal, sealed;   // as in ArchiveReader
};
// Reads all of an archive. Returns DATA_LOSS if it is damaged or if its rows do not fit together,
// RESOURCE_EXHAUSTED if its content has more than `most_bytes`, and CANCELLED if `over`, which is called
// after each row, returns true. The content of a small file can be very large.
absl::StatusOr<ArchiveHead> CheckArchive(int fd, int64_t most_bytes = std::numeric_limits<int64_t>::max(),
                                         const std::function<bool()>& over = nullptr);

// Gives new ids to the rows of an archive, one after the other.
class Renumbering {
 public:
  explicit Renumbering(const FirstIds& first) : next_(first) {}
  // Replaces the ids in a row of `table`. Returns DATA_LOSS if the row refers to one that did not come before. Leaves the
  // row's own id as it is if the table is "series": the database chooses it, see SetSeries.
  absl::Status Apply(const ArchiveTable& table, ArchiveRow& row);
  void SetSeries(int64_t old_id, int64_t new_id);
  int64_t study() const { return study_; }
  // Number of ids that were given of each kind.
  int64_t given(Numbered of) const { return static_cast<int64_t>(ids_[static_cast<size_t>(of)].size()); }

 private:
  absl::Status Refer(Numbered of, int64_t& id) const;

  FirstIds next_;
  int64_t study_ = 0;
  std::array<absl::flat_hash_map<int64_t, int64_t>, kNumbered> ids_;  // old -> new
};

// Stores the study of an archive that CheckArchive has accepted, in transactions of some thousand rows. The
// study is invisible until the last one. If the restore ends early, because of an error or because the
// process ends, Store::Maintain deletes what it has written. Not thread-safe.
class Restore {
 public:
  // `store` and `fd` must outlive the restore. `origin` is stored with the study.
  Restore(Store& store, int fd, ArchiveHead head, const FirstIds& first, std::optional<Origin> origin = {});
  ~Restore();
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

  // Writes the next transaction. Returns whether more transactions follow. After the last one, the study is
  // visible. ALREADY_EXISTS if the study is there, UNAVAILABLE if it is being deleted or restored. Must not
  // be called again after an error.
  absl::StatusOr<bool> Step();
  int64_t study_id() const { return first_[static_cast<size_t>(Numbered::kStudy)]; }

 private:
  absl::Status Begin(Database& db);
  absl::Status WriteSome(Database& db);
  absl::Status WriteRow(Database& db, ArchiveRow& row);
  absl::Status Finish(Database& db);

  Store& store_;
  const ArchiveHead head_;
  const FirstIds first_;
  const std::optional<Origin> origin_;
  ArchiveReader reader_;
  Renumbering renumbering_;
  std::array<int64_t, 8> runs_{};  // by state
  bool began_ = false, read_all_ = false, done_ = false;
};

}  // namespace scalelab::db
