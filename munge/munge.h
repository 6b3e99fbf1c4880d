// Encodes and decodes credentials of MUNGE.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace scalelab {

class Munge {
 public:
  // `socket`: the Unix socket of munged; empty for the system's.
  explicit Munge(std::string socket) : socket_(std::move(socket)) {}

  // Returns whether libmunge is installed.
  static bool IsInstalled();

  // Returns a credential of the account of this process. Blocks for some seconds if munged does not answer. Returns
  // UNAVAILABLE if libmunge is not installed or munged does not answer.
  absl::StatusOr<std::string> Encode(const std::string& payload) const;

  struct Decoded {
    std::string payload;
    uid_t uid = 0;  // the account that has encoded it
  };
  // Returns the content of a credential of this cluster. Blocks like Encode. Returns UNAVAILABLE in the
  // same cases as Encode, and UNAUTHENTICATED if the credential is forged, expired, or was decoded before
  // on this machine.
  absl::StatusOr<Decoded> Decode(const std::string& credential) const;

 private:
  const std::string socket_;
};

}  // namespace scalelab
