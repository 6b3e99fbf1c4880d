// Creates files that are complete after a power failure, or do not exist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace scalelab {

// The system calls that durable files need. Each function that returns an int returns 0 or an error number of errno. Tests
// of power failures replace it by a simulated disk.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Returns whether `path` names anything, also a symlink to nothing.
  virtual bool Exists(const std::string& path) = 0;
  virtual int Size(const std::string& path, int64_t& size) = 0;
  // Reads at most `limit` bytes from the beginning of the file.
  virtual int Read(const std::string& path, size_t limit, std::string& content) = 0;
  // Creates a file of mode 0600. Returns EEXIST if `path` exists. After another error the file may be incomplete.
  virtual int Create(const std::string& path, std::string_view content) = 0;
  virtual int Remove(const std::string& path) = 0;
  // Renames a file atomically. If `to` exists, replaces it, or returns EEXIST without `replace`.
  virtual int Rename(const std::string& from, const std::string& to, bool replace) = 0;
  // Makes the content of a file durable.
  virtual int Sync(const std::string& path) = 0;
  // Makes the names in a folder durable. Returns 0 on a filesystem that cannot sync folders: it has no cache of names
  // to lose.
  virtual int SyncFolder(const std::string& path) = 0;
};

// Returns the file system of the machine.
FileSystem& SystemFiles();

// Why a file could not be written.
struct FileFailure {
  int error = 0;        // an error number of errno; 0: the file was written
  bool folder = false;  // whether the folder of the file could not be synced
};

// Gives the complete file `part` its final name, and makes content and name durable. Both names are in one folder. After a
// failure `file` does not exist, unless it existed before and was not replaced; `part` may exist.
FileFailure PublishFile(FileSystem& files, const std::string& part, const std::string& file, bool replace);

// Writes the file (mode 0600) through `file`.part, which only one process may do at a time. Replaces a `file` and a
// `file`.part that exist. After a failure neither exists, unless `file` existed before and was not replaced.
FileFailure WriteDurably(FileSystem& files, const std::string& file, std::string_view content);

}  // namespace scalelab
