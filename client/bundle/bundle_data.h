// The raw data of a bundle: restores the archive of the study, and makes the files that have the same data
// in common formats.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/export/data_table.h"
#include "db/store.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::client {

// A directory for temporary files below TMPDIR. The destructor removes it with its content.
class TemporaryDirectory {
 public:
  // UNKNOWN if the directory cannot be created.
  static absl::StatusOr<TemporaryDirectory> Make();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// The numbers that a study and its first run have on the server that wrote the bundle. The other runs have
// the following numbers, in the order of execution.
struct FirstNumbers {
  int64_t study = 1, run = 1;
};
// Parses the name of the first run, "studies/7/runs/71". Returns nothing for other texts.
std::optional<FirstNumbers> ParseFirstRun(absl::string_view name);

// Restores the archive in the file `fd` into a new database in `directory`. The study and its runs get the
// numbers that they have on the server of the bundle. DATA_LOSS if the archive is damaged,
// FAILED_PRECONDITION if its schema is not known.
absl::StatusOr<std::unique_ptr<db::Store>> RestoreArchive(int fd, const std::string& directory,
                                                          const FirstNumbers& first);

// Returns the points of a restored study with the rows and columns of PointData. `store` must exist until
// the table is written.
DataTable ArchivedPoints(db::Store& store, int64_t study_id);

// Returns the nodes, the software and the code of each attempt as JSON. docs/users/show-results.md
// describes the format.
std::string ProvenanceText(const std::vector<scalelab::v1::Run>& runs);

}  // namespace scalelab::client
