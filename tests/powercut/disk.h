// A simulated disk that can lose power.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace scalelab::powercut {

// One change of the disk. Changes become durable by a later sync of the same file, or of the directory.
struct Operation {
  enum class Kind { kWrite, kTruncate, kSync, kCreate, kUnlink, kSyncDirectory, kRename };
  Kind kind;
  int inode = 0;
  std::string path = {};    // kCreate, kUnlink, kRename
  int64_t offset = 0;       // kWrite; kTruncate: the new size
  std::string data = {};    // kWrite
  std::string target = {};  // kRename: the new path
};
using Log = std::vector<std::shared_ptr<const Operation>>;

// The files that exist when the power is back, by name.
using Image = std::map<std::string, std::string>;

// Operations that fail, and their error. A failed operation has no effect.
struct Fault {
  int64_t first = -1, last = -1;  // numbers of the operations, inclusive
  bool no_space = false;          // ENOSPC, for operations that need space; else EIO, for all
};

// Ways in which a disk can break its promises, to check that the tests find it.
struct Flaws {
  bool ignores_sync = false;  // as PRAGMA synchronous=OFF
  bool ignores_directory_sync = false;
};

// One directory of files, as programs see it, and a log of all changes. Not thread-safe.
class Disk {
 public:
  enum class Result { kOk, kInputOutputError, kNoSpace };
  struct File {
    int inode;
    std::string data;
  };

  Disk() = default;
  explicit Disk(Image image);

  std::shared_ptr<File> Find(const std::string& path) const;  // null if there is none
  Result Create(const std::string& path, std::shared_ptr<File>& file);
  Result Write(File& file, int64_t offset, const char* data, size_t size);
  Result Truncate(File& file, int64_t size);
  Result Sync(File& file);
  Result Unlink(const std::string& path);
  // Renames the file `from`, which exists, and replaces a file `to`.
  Result Rename(const std::string& from, const std::string& to);
  Result SyncDirectory();
  // Counts a read as an operation, so that it can fail too.
  Result Read();

  void set_fault(const Fault& fault) { fault_ = fault; }
  void set_recording(bool recording) { recording_ = recording; }
  // Number of operations so far, reads included.
  int64_t operations() const { return operations_; }
  // The changes since recording began, or since they were taken.
  const Log& log() const { return log_; }
  Log TakeLog() { return std::exchange(log_, {}); }
  // Returns the files as programs see them.
  Image Contents() const;

 private:
  Result Step(Operation operation, bool needs_space);

  std::map<std::string, std::shared_ptr<File>> files_;
  int next_inode_ = 1;
  int64_t operations_ = 0;
  Fault fault_;
  bool recording_ = false;
  Log log_;
};

// Replays a log and gives images of what a power cut could leave at each point.
class PowerCuts {
 public:
  // `durable` is the image from which the recorded disk was made.
  explicit PowerCuts(const Flaws& flaws = {}, const Image& durable = {});

  // Replays the next operation.
  void Apply(std::shared_ptr<const Operation> operation);
  // Number of operations that were replayed.
  size_t position() const { return position_; }
  // Returns one of the possible images. It contains all changes that were synced. Each other change is in it or is lost; of
  // a write, it may contain only some sectors of 512 bytes. A rename is in it as a whole or is lost. It may be in the image
  // without the content of the file.
  Image Cut(std::mt19937_64& random) const;

 private:
  struct Change {
    size_t number;  // of the operation
    std::shared_ptr<const Operation> operation;
  };
  struct File {
    std::string durable;
    std::vector<Change> pending;  // writes and truncations
  };

  const Flaws flaws_;
  size_t position_ = 0;
  std::map<int, File> files_;
  std::map<std::string, int> directory_;  // durable entries
  std::vector<Change> pending_entries_;   // kCreate, kUnlink and kRename
};

// Returns a hash of all names and contents.
size_t HashOf(const Image& image);

}  // namespace scalelab::powercut
