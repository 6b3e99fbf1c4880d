// Records the code of a custom program when it ran: the files of its command, and their git repository.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "scalelab/v1/run.pb.h"

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

// Reads each file whose absolute path is a word of the command, and the commit of a git repository: the repository of
// the first of these files that is in one and is not an ELF program. If there is none, uses the repository of the first
// ELF program that is in one. Executes nothing.
// Leaves out git_dirty, diff_sha256 and diff_path.
v1::CodeSnapshot SnapshotOf(const std::vector<std::string>& command, FileHashes& hashes);

// Returns the snapshot for provenance.json: {"files": [{"path", "sha256"}], "git": {"root", "commit", "diff"}}, without
// members that do not exist. `diff` is the path of the file with the difference.
nlohmann::ordered_json CodeJson(const v1::CodeSnapshot& snapshot, const std::string& diff);

// Returns a command that prints the difference between the working tree and its last commit, 4 MiB at most.
// The command fails if git fails.
std::vector<std::string> DiffCommand(const std::string& git_root);

}  // namespace scalelab::worker
