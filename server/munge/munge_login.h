// Challenges for MUNGE, and the check of the credentials that answer them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "munge/munge.h"

namespace scalelab::server {

// May be used from any thread.
class MungeLogin {
 public:
  using Decode = std::function<absl::StatusOr<Munge::Decoded>(const std::string& credential)>;

  static constexpr absl::Duration kValid = absl::Minutes(1);

  // `server_key`: the secret of this server. `fingerprint`: that of its certificate; empty if it has none.
  // `decode` may block.
  MungeLogin(const std::string& server_key, std::string fingerprint, Decode decode);

  // Returns a challenge (munge/login_text.h). It is valid for kValid and for one credential.
  std::string Challenge(absl::Time now) const;

  // Returns the account that has encoded a challenge of this process and the certificate of this server. Blocks
  // like `decode`. Errors: those of `decode`; UNAUTHENTICATED if the content is no valid challenge, was used
  // before, or has another certificate; RESOURCE_EXHAUSTED if there were too many logins within kValid.
  absl::StatusOr<uid_t> Check(const std::string& credential, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::string Signed(const std::string& text) const;
  // Records that a challenge is used.
  absl::Status Use(const std::string& challenge, absl::Time expires, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string key_;
  const std::string fingerprint_;
  const Decode decode_;
  absl::Mutex mutex_;
  std::map<std::string, absl::Time> used_ ABSL_GUARDED_BY(mutex_);  // challenges, with their expiry
};

}  // namespace scalelab::server
