// Decides which sites may use the dashboard.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab::server {

// Decides by the headers Host and Origin. A page of another site cannot change them, so a site whose name resolves to this
// machine (DNS rebinding) and forms of other sites are refused.
class SitePolicy {
 public:
  // `url`: the address of the dashboard behind a reverse proxy, "https://HOST[:PORT]/[PATH/]"; empty without
  // a proxy. Loopback hosts with any port are always allowed, because ports change in SSH tunnels.
  // INVALID_ARGUMENT if `url` has another form.
  static absl::StatusOr<SitePolicy> For(const std::string& url);

  bool AllowsHost(absl::string_view host) const;
  // `origin`: the value of the header; empty if there is none. `host`: an allowed host.
  bool AllowsOrigin(absl::string_view origin, absl::string_view host) const;
  // Returns whether browsers use HTTPS to reach the dashboard.
  bool encrypted() const { return scheme_ == "https"; }
  bool proxied() const { return !scheme_.empty(); }

 private:
  std::string scheme_, host_;  // of the address behind a proxy; empty without a proxy
};

// Returns INVALID_ARGUMENT unless `address` is HOST:PORT with a loopback host.
absl::Status CheckWebAddress(const std::string& address);

}  // namespace scalelab::server
