// Checks of the machine that scalelabd runs on. Pure: facts in, findings out.
#pragma once

#include <string>

#include "server/doctor/facts.h"
#include "server/doctor/finding.h"

namespace scalelab::server::doctor {

// What the configuration says about a directory.
struct DirectoryUse {
  std::string subject;           // the key: "data" or "runs"
  bool must_be_local = false;    // SQLite's write-ahead log is there
  bool must_be_private = false;  // only the account of the service may enter it
  bool nodes_use_it = false;     // every node must have it under this path
};

Finding CheckClock(const ClockFacts& facts);
Findings CheckDirectory(const DirectoryFacts& facts, const DirectoryUse& use, uid_t user);
Findings CheckSecrets(const std::vector<FileFacts>& secrets, uid_t user);
Finding CheckLimits(const LimitFacts& facts);
// `server` is the process id of the scalelabd that uses the data directory; 0 if none runs.
Finding CheckAddress(const AddressFacts& facts, pid_t server);
// Checks the address that workers on other nodes dial.
Finding CheckWorkerServer(const std::string& address, const NameFacts& facts);

}  // namespace scalelab::server::doctor
