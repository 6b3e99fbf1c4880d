#include "server/services/session_calls.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/services/auth_service.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

// Limit of the size of a credential. A credential that libmunge makes for a login has about 400 bytes.
constexpr size_t kLongestCredential = 4096;
constexpr char kSource[] = "munge";

absl::Status NoSessions() {
  return MakeError(absl::StatusCode::kUnimplemented, "NO_SESSIONS",
                   "this server has no login with MUNGE; present a token");
}

// Adds a machine-readable reason to an error of a login.
absl::Status WithReason(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnauthenticated
             ? MakeError(status.code(), "BAD_MUNGE_CREDENTIAL", status.message())
             : MakeError(status.code(), "NO_MUNGE", status.message());
}

}  // namespace

grpc::ServerUnaryReactor* SessionCalls::CreateChallenge(grpc::CallbackServerContext* context,
                                                        v1::CreateChallengeResponse* response) {
  if (!Munge::IsInstalled()) return Answer(context, NoSessions());
  response->set_challenge(login_.Challenge(absl::Now()));
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* SessionCalls::CreateSession(grpc::CallbackServerContext* context,
                                                      const v1::CreateSessionRequest* request,
                                                      v1::CreateSessionResponse* response) {
  if (request->munge_credential().empty() || request->munge_credential().size() > kLongestCredential) {
    return Answer(
        context,
        InvalidFields({{"munge_credential",
                        absl::StrCat("is not the output of munge for a challenge, which has at most ",
                                     kLongestCredential, " bytes")}}));
  }
  Identity unknown;
  unknown.source = kSource;
  unknown.address = handler_.access.AddressOf(*context);
  auto client = std::make_shared<ClientCall>(std::move(unknown), "CreateSession", /*changes=*/false,
                                             handler_.access.PeerOf(*context));
  auto call = UnaryCall<v1::CreateSessionResponse>::Start(
      context, response, handler_.pools.timers, handler_.call_limit, client,
      [&access = handler_.access, client](const absl::Status& status) { access.Audit(*client, status); });
  FinishOn(handler_.pools.logins, call, [this, credential = request->munge_credential()](auto& session) {
    const absl::Time now = absl::Now();
    const absl::StatusOr<uid_t> account = login_.Check(credential, now);
    if (!account.ok()) return WithReason(account.status());
    Authenticator& identities = handler_.access.identities();
    const absl::StatusOr<std::string> name = identities.users().NameOf(*account);
    if (!name.ok()) return name.status();
    session.response.set_token(identities.sessions().Issue(*name, kSource, now));
    const absl::StatusOr<Identity> caller = identities.Bearer(session.response.token(), "", now);
    if (!caller.ok()) return caller.status();
    *session.response.mutable_identity() = ToIdentity(*caller);
    return absl::OkStatus();
  });
  return call->reactor();
}

}  // namespace scalelab::server
