// Writes files so that even after a power failure each one is either complete or absent, and computes
// checksums that show damage.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

namespace scalelab::trainer {

// A checksum of 64 bits. Two texts of the same length that differ only within one aligned word of 8 bytes
// never have the same checksum. Two texts with other differences have the same checksum with a probability
// of about 2^-64.
class ByteSum {
 public:
  void Add(std::string_view bytes);
  // Returns 16 hexadecimal digits.
  std::string Hex() const;

 private:
  void AddWord(uint64_t word);

  uint64_t state_ = 0x9e3779b97f4a7c15u;
  uint64_t length_ = 0;
  char rest_[8] = {};  // bytes that do not fill a word yet: length_ % 8 of them
};

// Size and checksum of a file.
struct FileSum {
  int64_t bytes = 0;
  std::string sum;

  bool operator==(const FileSum&) const = default;
};

FileSum SumOf(std::string_view bytes);

// Replaces the file at `path` by what `write` writes: writes PATH.new, syncs it, renames it and syncs the
// directory. Throws TrainerError that names the path, and exceptions of `write`. The file is unchanged
// after an exception.
FileSum WriteDurably(const std::string& path, const std::function<void(std::ostream&)>& write);

// Returns the whole file. Throws TrainerError that names the path: kData if there is no such file, kOther if
// it cannot be read.
std::string ReadWhole(const std::string& path);

// Syncs a directory, so that new names in it survive a power failure. Throws TrainerError.
void SyncDirectory(const std::string& path);
// Syncs a directory and those above it in the same file system, so that a new directory survives a power failure
// even if its parents are new too. Skips directories that this account may not read. Throws TrainerError.
void SyncDirectories(const std::string& path);

}  // namespace scalelab::trainer
