// The coordinator's own directory, held by one scalelabd at a time.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace scalelab::server {

class DataDir {
 public:
  // Makes `path` (mode 0700, parents too) and what belongs in it where absent, and takes it: nobody else can
  // open it until this object or its process is gone.
  //   scalelabd.lock   flock, holds the process id
  //   client.token     0600, what remote clients present: 32 random bytes in hexadecimal, made at first start
  //   server.key       0600, what the secrets of allocations are derived from; never leaves this machine
  //   allocations/     of the local scheduler
  // FAILED_PRECONDITION: another scalelabd serves it; PERMISSION_DENIED, INVALID_ARGUMENT: it cannot be used.
  // All are one sentence with the path and what to do.
  static absl::StatusOr<DataDir> Open(const std::string& path);

  DataDir(DataDir&& other) noexcept;
  DataDir& operator=(DataDir&&) = delete;
  ~DataDir();  // releases the lock; the files stay

  const std::string& path() const { return path_; }
  const std::string& client_token() const { return client_token_; }
  const std::string& server_key() const { return server_key_; }
  std::string database() const { return path_ + "/scalelab.db"; }
  std::string allocations() const { return path_ + "/allocations"; }

 private:
  DataDir(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_;
  std::string client_token_;
  std::string server_key_;
};

}  // namespace scalelab::server
