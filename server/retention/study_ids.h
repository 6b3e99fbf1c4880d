// Keeps the ids of studies unique after a database is restored.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "db/store.h"

namespace scalelab::server {

// Makes the ids of new studies larger than those of the directories RUNS/STUDY of this account. The studies that were
// submitted after a backup are not in the restored database, but their directories remain. A new study with the same id
// would continue from the checkpoints in them.
//
// Call SkipIdsOfDirectories before the coordinator starts. Blocks while the filesystem blocks. Logs the errors of the
// filesystem, and returns those of the store.
absl::Status SkipIdsOfDirectories(const std::string& runs_dir, db::Store& store);

}  // namespace scalelab::server
