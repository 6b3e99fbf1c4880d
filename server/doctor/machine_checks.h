// Checks the machine that scalelabd runs on. Pure functions from facts to findings.
#pragma once

#include <string>
#include <vector>

#include "server/doctor/facts.h"
#include "server/doctor/finding.h"

namespace scalelab::server::doctor {

// The requirements for a directory of the configuration.
struct DirectoryUse {
  std::string subject;           // the configuration key: "data" or "runs"
  bool must_be_local = false;    // contains SQLite's write-ahead log
  bool must_be_private = false;  // only the account of the service may enter the directory
  bool nodes_use_it = false;     // every node must have the directory under the same path
  bool users_write = false;      // every user creates a directory in it
};

Finding CheckClock(const ClockFacts& facts);
Findings CheckDirectory(const DirectoryFacts& facts, const DirectoryUse& use, uid_t user);
Findings CheckSecrets(const std::vector<FileFacts>& secrets, uid_t user);
Finding CheckLimits(const LimitFacts& facts);
// Checks an address to serve. `key` is its configuration key. `server` is the process id of the scalelabd that
// uses the data directory, or 0.
Finding CheckAddress(const std::string& key, const AddressFacts& facts, pid_t server);
// Checks that those who may connect to a Unix socket with this mode may also enter its directory. Returns nothing if
// they may.
Findings CheckSocketAccess(const AddressFacts& facts, mode_t socket_mode);
// Checks the programs that send notifications. `no_new_privileges`: setuid and setgid bits have no effect on programs
// that the service starts.
Findings CheckNotifications(const std::vector<ProgramFacts>& programs, bool no_new_privileges);
// Checks the files of the certificate for TCP.
Findings CheckTls(const std::vector<TlsFileFacts>& files, absl::Time now);
// Checks the address that workers on other nodes connect to.
Finding CheckWorkerServer(const std::string& address, const NameFacts& facts);

}  // namespace scalelab::server::doctor
