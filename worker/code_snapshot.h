// Which code a program of a user's own had when it ran: the files of its command, and their git repository.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace scalelab::worker {

// The hashes of files. Reads a file again only after it has changed, because large programs take long.
class FileHashes {
 public:
  // Returns the SHA-256 of a regular file of at most 64 MiB; empty for anything else.
  std::string Of(const std::string& path);

 private:
  struct Known {
    int64_t size, changed, inode;
    std::string sha256;
  };
  std::map<std::string, Known> known_;
};

struct CodeSnapshot {
  // For provenance.json: {"files": [{"path", "sha256"}], "git": {"root", "commit"}}, without what does not exist.
  nlohmann::ordered_json json;
  std::string git_root;  // empty: no file of the command is in a git repository
};

// Reads the files that words of the command name by an absolute path, and the commit of the first repository that has one
// of them. Executes nothing.
CodeSnapshot SnapshotOf(const std::vector<std::string>& command, FileHashes& hashes);

// Returns a command that prints the difference between the working tree and its last commit, 4 MiB at most.
std::vector<std::string> DiffCommand(const std::string& git_root);

}  // namespace scalelab::worker
