#include "client/session/session_token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/environment.h"
#include "client/session/server_options.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/grpcpp.h"
#include "munge/login_text.h"
#include "munge/munge.h"
#include "proto/status.h"
#include "scalelab/v1/auth.grpc.pb.h"
#include "tls/certificate.h"

namespace scalelab::client {
namespace {

// The assumed lifetime of a token if the server does not send the time of expiry.
constexpr absl::Duration kShortLife = absl::Minutes(10);

std::string FileOf(const std::string& server) {
  const std::string runtime = Environment("XDG_RUNTIME_DIR");
  return absl::StrCat(runtime.empty() ? CacheDirectory() : runtime + "/scalelab", "/session-", server);
}

// A token that cannot be stored is used for this command only.
void Store(const std::string& server, const SessionToken& token) {
  const std::string path = FileOf(server), part = absl::StrCat(path, ".", getpid());
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const std::string text = absl::StrCat(absl::ToUnixSeconds(token.expires), "\n", token.secret, "\n");
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  if (!written || rename(part.c_str(), path.c_str()) != 0) unlink(part.c_str());
}

std::unique_ptr<grpc::ClientContext> Within(absl::Time deadline) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(deadline));
  return context;
}

// Returns the fingerprint of the certificate that the server has presented on the connection of a call that has ended.
// Returns an empty text if the connection is not encrypted.
absl::StatusOr<std::string> FingerprintSeenBy(const grpc::ClientContext& context) {
  const auto peer = context.auth_context();
  if (peer == nullptr) return "";
  const auto certificates = peer->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (certificates.empty()) return "";
  return tls::Fingerprint(std::string(certificates[0].data(), certificates[0].size()));
}

}  // namespace

SessionToken StoredSession(const std::string& server, absl::Time now) {
  const std::string path = FileOf(server);
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || found.st_uid != geteuid() || (found.st_mode & 077) != 0) return {};
  std::ifstream file(path);
  std::string expires;
  int64_t seconds = 0;
  SessionToken token;
  if (!std::getline(file, expires) || !absl::SimpleAtoi(expires, &seconds) ||
      !std::getline(file, token.secret))
    return {};
  token.expires = absl::FromUnixSeconds(seconds);
  return token.usable(now) ? token : SessionToken();
}

absl::StatusOr<SessionToken> NewSession(const std::shared_ptr<grpc::Channel>& channel,
                                        const std::string& server, absl::Time deadline) {
  // Tests set this variable to the socket of their own munged.
  const Munge munge(Environment("SCALELAB_MUNGE_SOCKET"));
  if (!Munge::IsInstalled()) return munge.Encode("").status();
  const auto stub = scalelab::v1::AuthService::NewStub(channel);
  scalelab::v1::CreateChallengeResponse challenge;
  const auto context = Within(deadline);
  if (auto status = stub->CreateChallenge(context.get(), {}, &challenge); !status.ok())
    return FromGrpc(status);
  const auto fingerprint = FingerprintSeenBy(*context);
  if (!fingerprint.ok()) return fingerprint.status();
  const auto text = LoginText(challenge.challenge(), *fingerprint);
  if (!text.ok()) return text.status();
  auto credential = munge.Encode(*text);
  if (!credential.ok()) return credential.status();
  scalelab::v1::CreateSessionRequest request;
  request.set_munge_credential(*std::move(credential));
  scalelab::v1::CreateSessionResponse session;
  if (auto status = stub->CreateSession(Within(deadline).get(), request, &session); !status.ok())
    return FromGrpc(status);
  SessionToken token{session.token(), absl::Now() + kShortLife};
  if (session.identity().has_expire_time())
    token.expires = absl::FromUnixSeconds(session.identity().expire_time().seconds());
  Store(server, token);
  return token;
}

}  // namespace scalelab::client
