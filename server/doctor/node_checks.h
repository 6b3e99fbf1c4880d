// A script that examines a node of the cluster, and the interpretation of its output. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/doctor/finding.h"

namespace scalelab::server::doctor {

// The files and programs that the script must find on the node.
struct NodeExpectation {
  std::string worker_program;
  std::string version;  // of scalelabd
  std::string runs_dir;
  std::string directory;    // a directory below runs_dir that contains the file "word"
  std::string word;         // content of that file
  std::string server_host;  // address that workers connect to; empty: a socket on the same machine
  int server_port = 0;
  uid_t user = 0;
};

// Returns a shell script that prints lines "NAME VALUE", one for each fact.
std::string NodeScript(const NodeExpectation& expected);

// Interprets the script's output. The script ran between `submitted` and `seen`.
Findings JudgeNode(absl::string_view output, const NodeExpectation& expected, absl::Time submitted,
                   absl::Time seen);

}  // namespace scalelab::server::doctor
