// The disk of the coordinator's machine. If the process is killed, all of its writes are kept. After a power
// failure, synced writes are kept, and other writes may be lost or torn.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "db/store.h"
#include "tests/powercut/disk.h"
#include "tests/powercut/disk_vfs.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

class Power {
 public:
  // All databases that are opened while the object exists are on this disk.
  Power(World& world, std::string database);

  // Calls `close`, which closes the database, without an effect on the disk. Simulates a killed process.
  void Kill(const std::function<void()>& close);
  // Must be called after the process has written. Limits the memory of this object.
  void Settle();

  // Simulates a power failure now. The caller must then call Kill.
  void Cut();
  // Must be called before and after a commit during which the power fails. The caller must then call Kill.
  void BeginCommit();
  void CutCommit(const db::WriteBatch& batch);
  // After a power cut in a commit, before the database is opened: returns the batch if it is in the database. The
  // database has to be as it was before the commit or after it.
  std::optional<db::WriteBatch> TakeCommitted();

 private:
  struct InterruptedCommit {
    db::WriteBatch batch;
    powercut::Image before, after;
  };
  // Returns all rows of all tables of a database as text.
  std::string Dump(const powercut::Image& image);

  World& world_;
  const std::string database_;
  std::unique_ptr<powercut::Disk> disk_;
  std::unique_ptr<powercut::DiskVfs> vfs_;
  std::unique_ptr<powercut::PowerCuts> cuts_;
  std::optional<powercut::Image> left_;  // the files after a power failure
  powercut::Image before_commit_;
  std::optional<InterruptedCommit> interrupted_;
};

}  // namespace scalelab::simulation
