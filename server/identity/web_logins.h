// One-time codes that log browsers in to the dashboard.
#pragma once

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/identity/identity.h"

namespace scalelab::server {

// A code is 256 random bits. It is valid once, and for two minutes. Only the hashes of codes are kept, and only in memory, so
// that codes become invalid when the server restarts. Thread-safe.
class WebLogins {
 public:
  static constexpr absl::Duration kLifetime = absl::Minutes(2);
  static constexpr size_t kCodesPerUser = 20;  // the oldest one ends when there are more

  // Sets the address of the dashboard, which ends with '/'. Without it there is no dashboard.
  void SetUrl(std::string url) ABSL_LOCKS_EXCLUDED(mutex_);

  struct Link {
    std::string url;  // contains the code
    absl::Time expires;
  };
  // Returns a link for the caller, whose login may be used for `scope`. Returns FAILED_PRECONDITION if the
  // server has no dashboard.
  absl::StatusOr<Link> Create(Identity caller, Scope scope, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the caller who created this code, with the scope of the login. Ends the code. Returns UNAUTHENTICATED if it is
  // unknown, expired or was used before.
  absl::StatusOr<Identity> Redeem(absl::string_view code, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Pending {
    Identity caller;
    absl::Time expires;
  };
  void RemoveOld(const std::string& user, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::string url_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Pending> by_hash_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace scalelab::server
