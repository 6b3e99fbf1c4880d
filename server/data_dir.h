// The data directory of the coordinator, locked by one scalelabd at a time.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "files/durable_file.h"
#include "files/lock_file.h"

namespace scalelab::server {

class DataDir {
 public:
  // Creates `path` (and its parents, mode 0700) and its contents when absent, and locks it until this object
  // is destroyed or the process ends.
  //   scalelabd.lock   the lock file; contains the process id
  //   client.token     0600; authenticates remote clients: 32 random bytes in hexadecimal
  //   scalelab.db      the database; scalelab.db.id shows that it existed (db/sqlite/identity.h)
  //   server.key       0600; the secrets of allocations are derived from it; never leaves this machine
  //   tls.pem          0600; the key and the certificate of TCP, made when they are first used (server/tls_identity.h)
  //   allocations/     directory of the local scheduler
  // Returns FAILED_PRECONDITION if another scalelabd uses the directory, PERMISSION_DENIED or INVALID_ARGUMENT
  // if it cannot be used. The message names the path and what to do. `files` contains the secrets; null: the file
  // system of the machine.
  static absl::StatusOr<DataDir> Open(const std::string& path, FileSystem* files = nullptr);

  const std::string& path() const { return path_; }
  const std::string& client_token() const { return client_token_; }
  const std::string& server_key() const { return server_key_; }
  // Returns the content of the file `name` of mode 0600. If the file does not exist, creates it with the
  // content that `make` returns. Returns FAILED_PRECONDITION if other users can read the file or it is too
  // short for a secret.
  absl::StatusOr<std::string> Secret(const std::string& name,
                                     const std::function<absl::StatusOr<std::string>()>& make) const;
  std::string database() const { return path_ + "/scalelab.db"; }
  std::string allocations() const { return path_ + "/allocations"; }

 private:
  DataDir(std::string path, LockFile lock, FileSystem& files)
      : path_(std::move(path)), lock_(std::move(lock)), files_(&files) {}

  std::string path_;
  LockFile lock_;
  FileSystem* files_;  // never null
  std::string client_token_;
  std::string server_key_;
};

}  // namespace scalelab::server
