// What a node of the cluster sees: a script that runs there, and the interpretation of its output. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/doctor/finding.h"

namespace scalelab::server::doctor {

// What the node has to find.
struct NodeExpectation {
  std::string worker_program;
  std::string version;  // of scalelabd
  std::string runs_dir;
  std::string directory;    // a directory below runs_dir with the file "word"
  std::string word;         // content of that file
  std::string server_host;  // address that workers dial; empty: a socket on the same machine
  int server_port = 0;
  uid_t user = 0;
};

// Returns a shell script that prints one fact a line: "NAME VALUE".
std::string NodeScript(const NodeExpectation& expected);

// Interprets the script's output. The script ran between `submitted` and `seen`.
Findings JudgeNode(absl::string_view output, const NodeExpectation& expected, absl::Time submitted,
                   absl::Time seen);

}  // namespace scalelab::server::doctor
