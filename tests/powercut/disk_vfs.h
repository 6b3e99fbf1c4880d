// Makes SQLite use a simulated disk.
#pragma once

#include <string>

#include "tests/powercut/disk.h"

namespace scalelab::powercut {

// While it exists, all databases are on a simulated disk: SQLite's default VFS is replaced for the
// whole process. All connections must be used by one thread. Locks and the shared memory of a WAL are lost with `disk`,
// as they are when a machine loses power.
class DiskVfs {
 public:
  explicit DiskVfs(Disk& disk);
  ~DiskVfs();
  DiskVfs(const DiskVfs&) = delete;
  DiskVfs& operator=(const DiskVfs&) = delete;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace scalelab::powercut
