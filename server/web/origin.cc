#include "server/web/origin.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/rpc/socket.h"

namespace scalelab::server {
namespace {

bool IsPort(absl::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
}

// Returns whether `host` has the form NAME[:PORT] or [IPV6][:PORT]. Sets `name` to the part without the port.
bool SplitHost(absl::string_view host, absl::string_view* name) {
  const size_t bracket = host.find(']');
  const size_t colon = host.find(':', bracket == absl::string_view::npos ? 0 : bracket);
  *name = host.substr(0, colon);
  const bool valid = !name->empty() && std::all_of(name->begin(), name->end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '[' || c == ']' || c == ':';
  });
  return valid && (colon == absl::string_view::npos || IsPort(host.substr(colon + 1)));
}

bool IsLoopback(absl::string_view name) {
  if (absl::EqualsIgnoreCase(name, "localhost") || name == "[::1]") return true;
  // Accept only IPv4 addresses, because "127.example.org" is a name of another host.
  return absl::StartsWith(name, "127.") && std::count(name.begin(), name.end(), '.') == 3 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isdigit(c) || c == '.'; });
}

}  // namespace

absl::StatusOr<SitePolicy> SitePolicy::For(const std::string& url) {
  SitePolicy policy;
  if (url.empty()) return policy;
  absl::string_view rest = url;
  const bool secure = absl::ConsumePrefix(&rest, "https://");
  const bool known = secure || absl::ConsumePrefix(&rest, "http://");
  const size_t slash = rest.find('/');
  absl::string_view name;
  const bool plain = rest.find_first_of("?#@\\ ") == absl::string_view::npos;
  if (!known || !plain || slash == absl::string_view::npos || !absl::EndsWith(rest, "/") ||
      !SplitHost(rest.substr(0, slash), &name)) {
    return absl::InvalidArgumentError(absl::StrCat("'", url,
                                                   "' is not the address of a dashboard; write https://HOST/ "
                                                   "or https://HOST/PATH/, with a slash at the end"));
  }
  policy.scheme_ = secure ? "https" : "http";
  policy.host_ = absl::AsciiStrToLower(rest.substr(0, slash));
  return policy;
}

absl::Status CheckWebAddress(const std::string& address) {
  const absl::StatusOr<Address> parsed = ParseAddress(address);
  if (!parsed.ok()) return parsed.status();
  if (parsed->unix_path.empty() && IsLoopback(parsed->host)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", address,
                                                 "' is not a loopback address; browsers on other machines "
                                                 "need an SSH tunnel or a reverse proxy with TLS, so "
                                                 "write 127.0.0.1:PORT"));
}

bool SitePolicy::AllowsHost(absl::string_view host) const {
  absl::string_view name;
  if (!SplitHost(host, &name)) return false;
  return IsLoopback(name) || (!host_.empty() && absl::EqualsIgnoreCase(host, host_));
}

bool SitePolicy::AllowsOrigin(absl::string_view origin, absl::string_view host) const {
  if (origin.empty()) return true;
  if (!scheme_.empty() && absl::EqualsIgnoreCase(origin, absl::StrCat(scheme_, "://", host_))) return true;
  return absl::EqualsIgnoreCase(origin, absl::StrCat("http://", host));
}

}  // namespace scalelab::server
