// Makes durable files use a simulated disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "files/durable_file.h"
#include "tests/powercut/disk.h"

namespace scalelab::powercut {

// The files of `disk`. All paths are in its one directory.
class DiskFiles : public FileSystem {
 public:
  explicit DiskFiles(Disk& disk) : disk_(disk) {}

  bool Exists(const std::string& path) override;
  int Size(const std::string& path, int64_t& size) override;
  int Read(const std::string& path, size_t limit, std::string& content) override;
  // Writes the content in two parts, so that a power cut can leave the first one.
  int Create(const std::string& path, std::string_view content) override;
  int Remove(const std::string& path) override;
  int Rename(const std::string& from, const std::string& to, bool replace) override;
  int Sync(const std::string& path) override;
  int SyncFolder(const std::string& path) override;

 private:
  Disk& disk_;
};

}  // namespace scalelab::powercut
