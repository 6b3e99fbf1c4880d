#include "server/retention/study_ids.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "db/retention/retention.h"
#include "files/attempt_files.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

// A directory with a larger number was not made by a service, and the ids after it could overflow.
constexpr int64_t kLargestId = int64_t{1} << 53;

absl::StatusOr<std::vector<int64_t>> ListStudies(const std::string& runs_dir, int64_t above) {
  absl::StatusOr<AttemptFiles> files = AttemptFiles::Open(runs_dir);
  if (!files.ok()) return files.status();
  return files->ListStudies(above);
}

}  // namespace

absl::Status SkipIdsOfDirectories(const std::string& runs_dir, db::Store& store) {
  const absl::StatusOr<int64_t> last = db::GetLastStudyId(store);
  if (!last.ok()) return last.status();
  absl::StatusOr<std::vector<int64_t>> ids = ListStudies(runs_dir, *last);
  if (!ids.ok()) {
    spdlog::warn("new studies may get the ids of studies that a restored database lacks: {}",
                 std::string(ids.status().message()));
    return absl::OkStatus();
  }
  std::erase_if(*ids, [](int64_t id) { return id > kLargestId; });
  if (ids->empty()) return absl::OkStatus();
  spdlog::warn(
      "the database lacks {} studies that have directories in {}, the last one is {}; new studies get larger "
      "ids",
      ids->size(), runs_dir, ids->back());
  return db::RaiseLastStudyId(store, ids->back());
}

}  // namespace scalelab::server
