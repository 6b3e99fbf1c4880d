// `scalelab login`: shows the certificate of a server and, if the user accepts it, stores it for all commands.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/session/server_trust.h"
#include "tls/certificate.h"
#include "tls/fetch.h"

namespace scalelab::client {
namespace {

constexpr char kDefaultPort[] = ":7600";
constexpr absl::Duration kTimeout = absl::Seconds(10);

struct LoginOptions {
  std::string server;
  std::string fingerprint;
  bool yes = false;
};

absl::StatusOr<ServerAddress> ParseAddress(const std::string& text) {
  const bool has_port = text.rfind(':') != std::string::npos && !absl::EndsWith(text, "]");
  auto address = ParseServerAddress(has_port ? text : text + kDefaultPort);
  if (address.ok() && !address->encrypted) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, " has no certificate: only servers at HOST:PORT need `scalelab login`"));
  }
  return address;
}

// Returns OK if the user accepts the certificate with the fingerprint `presented`. `known` is the fingerprint
// of the accepted certificate, or "".
absl::Status Ask(Session& session, const LoginOptions& options, const std::string& server,
                 const std::string& known, const std::string& presented) {
  session.Say(absl::StrCat("SHA-256 fingerprint of ", server, ": ", presented));
  if (!known.empty())
    session.Say(absl::StrCat("The certificate has changed. So far you have accepted: ", known));
  if (!options.fingerprint.empty()) {
    if (tls::SameFingerprint(options.fingerprint, presented)) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("the certificate of ", server, " has the fingerprint ",
                                                    presented, ", not ", options.fingerprint,
                                                    ": ask the server's operator"));
  }
  if (options.yes && known.empty()) return absl::OkStatus();
  if (options.yes) {
    return absl::PermissionDeniedError(
        absl::StrCat("the certificate of ", server, " has changed from ", known, " to ", presented,
                     ", and --yes accepts only new servers: use --fingerprint"));
  }
  if (session.Confirms(
          "Accept it? Compare the fingerprint with that of the server's operator, then type yes: "))
    return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the certificate of ", server, " is not accepted"));
}

absl::StatusOr<ExitCode> ExecuteLogin(Session& session, const LoginOptions& options) {
  const auto address = ParseAddress(options.server);
  if (!address.ok()) return address.status();
  const auto presented = tls::FetchCertificate(address->host, address->port, kTimeout);
  if (!presented.ok()) return presented.status();
  const auto fingerprint = tls::Fingerprint(presented->certificate);
  if (!fingerprint.ok()) return fingerprint.status();
  const auto known = KnownCertificate(address->text);
  if (!known.ok()) return known.status();
  const std::string accepted = known->empty() ? "" : tls::Fingerprint(*known).value_or("");
  if (accepted == *fingerprint && options.fingerprint.empty()) {
    session.Say(absl::StrCat("You have accepted this certificate of ", address->text, " before: ", accepted));
    return ExitCode::kOk;
  }
  if (presented->trusted && known->empty() && options.fingerprint.empty()) {
    session.Say(absl::StrCat("An authority that this system trusts has signed the certificate of ",
                             address->text, "; it needs no login."));
    return ExitCode::kOk;
  }
  if (auto asked =
          Ask(session, options, address->text, accepted == *fingerprint ? "" : accepted, *fingerprint);
      !asked.ok())
    return asked;
  if (auto stored = AcceptCertificate(address->text, presented->certificate); !stored.ok()) return stored;
  session.Say(absl::StrCat("Stored in ", KnownServersFile(),
                           ". To use this server: export SCALELAB_SERVER=", address->text));
  return ExitCode::kOk;
}

}  // namespace

void AddLogin(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<LoginOptions>();
  CLI::App* command = app.add_subcommand("login", "Accept the certificate of a server on another machine");
  command->add_option("SERVER", options->server, "HOST or HOST:PORT (port 7600)")->required();
  command->add_option("--fingerprint", options->fingerprint,
                      "Accept the certificate with this fingerprint only");
  command->add_flag("--yes", options->yes, "Accept the certificate of a new server without a question");
  command->callback([&chosen, options] {
    chosen = [options](Session& session) { return ExecuteLogin(session, *options); };
  });
}

}  // namespace scalelab::client
