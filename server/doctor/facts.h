// Reads the facts about this machine that the checks need. The checks themselves are pure functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/command/command.h"

namespace scalelab::server::doctor {

// A function that runs a program with `input` as its standard input. Tests replace it.
using Run = std::function<absl::StatusOr<CommandResult>(const std::vector<std::string>& argv,
                                                        const std::string& input)>;
// Returns a function that runs programs on this machine with a timeout of 15 seconds.
Run RunHere();

struct ClockFacts {
  bool known = false;  // whether the kernel reports the state of its clock
  bool synchronised = false;
};
ClockFacts ReadClock();

// A directory of the configuration. If it does not exist, the other members describe its
// closest existing parent.
struct DirectoryFacts {
  std::string path;      // as configured
  std::string existing;  // `path`, or its closest existing parent
  bool is_directory = false;
  uid_t owner = 0;
  mode_t mode = 0;
  std::string write_error;        // why a file cannot be written there; empty if it can
  absl::Duration clock_offset;    // time stamp of a new file minus this machine's clock
  const char* network = nullptr;  // name of the network filesystem; null for a local one
  int64_t free_bytes = 0;
  std::optional<int64_t> free_inodes;  // absent where the filesystem has no limit
};
// Writes and removes a temporary file in the directory.
DirectoryFacts ReadDirectory(const std::string& path);

struct FileFacts {
  std::string path;
  uid_t owner = 0;
  mode_t mode = 0;
};
// Returns the files of the data directory that contain secrets.
std::vector<FileFacts> ReadSecrets(const std::string& data_dir);

struct LimitFacts {
  uint64_t files = 0, processes = 0;  // hard limit of open files, soft limit of processes
};
LimitFacts ReadLimits();

// The state of an address in `listen`.
struct AddressFacts {
  std::string text;
  bool unix_socket = false;
  std::string error;  // why the server cannot listen on it; empty if it can, or if it is only in use
  bool in_use = false;
  // Unix socket: the first directory on its path that other users, or the group of this process, may not enter; empty:
  // none.
  std::string closed_to_others, closed_to_group;
};
AddressFacts ReadAddress(const std::string& text);

// The result of resolving a host name.
struct NameFacts {
  std::string error;
  bool loopback = false;  // whether all its addresses are on the loopback interface
};
NameFacts Resolve(const std::string& host);

// A file of the certificate for TCP.
struct TlsFileFacts {
  std::string setting;  // its configuration key: "tls_certificate", "tls_key" or "tls_authority"; empty: the
                        // pair that scalelabd made itself
  std::string path;
  std::string error;                 // why scalelabd cannot use it; empty if it can
  bool is_key = false;               // a private key; otherwise certificates
  mode_t mode = 0;                   // of a key
  absl::Time not_before, not_after;  // of certificates: the validity of the one that scalelabd presents
};
// Reads a file of certificates. `setting` is as in TlsFileFacts.
TlsFileFacts ReadCertificate(const std::string& setting, const std::string& path);
// Reads a private key, and compares it with the first certificate in the file `certificate`.
TlsFileFacts ReadKey(const std::string& setting, const std::string& path, const std::string& certificate);

// A program that sends notifications.
struct ProgramFacts {
  std::string setting;  // its configuration key: "sendmail", or "notify_commands: NAME"
  std::string path;
  std::string error;       // why this account cannot execute it; empty if it can
  std::string privileged;  // the program with a setuid or setgid bit that it is or starts; empty: none
};
ProgramFacts ReadProgram(const std::string& setting, const std::string& path);

// Returns whether setuid and setgid bits have no effect on programs that the process starts; nothing if there is no such
// process.
std::optional<bool> HasNoNewPrivileges(pid_t process);

// Returns the process id of the scalelabd that uses the data directory; 0 if none does.
pid_t RunningServer(const std::string& data_dir);

}  // namespace scalelab::server::doctor
