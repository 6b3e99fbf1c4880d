#include "client/session/connection.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/server_trust.h"
#include "grpc/support/log.h"
#include "proto/status.h"
#include "tls/credentials.h"

namespace scalelab::client {
namespace {

using std::chrono::system_clock;

constexpr absl::Duration kProbeTime = absl::Seconds(5);

system_clock::time_point ToChrono(absl::Time time) {
  // gRPC's time points have no infinite value; one year is long enough.
  return absl::ToChronoTime(std::min(time, absl::Now() + absl::Hours(24 * 365)));
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  std::string token;
  if (!std::getline(file, token) || absl::StripAsciiWhitespace(token).empty()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read a token from ", path,
                                                   ": set --token-file or SCALELAB_TOKEN_FILE to a file with "
                                                   "a token, which `scalelab token create` prints"));
  }
  return std::string(absl::StripAsciiWhitespace(token));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> NewChannel(const ServerOptions& options) {
  // gRPC logs failed handshakes on standard error. Unreachable() explains them.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   5000);  // also the timeout for establishing a connection
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // By default, gRPC stops its pings after two of them if the client sends no further message. A command that
  // watches a quiet study would then never notice that the server's machine has gone.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.address.encrypted) {
    auto trust = tls::Trust(options.certificate, arguments);
    if (!trust.ok()) return trust.status();
    credentials = *std::move(trust);
  }
  return grpc::CreateCustomChannel(options.address.target, credentials, arguments);
}

}  // namespace

Connection::Connection(ServerOptions options, absl::Duration timeout, std::string token,
                       std::shared_ptr<grpc::Channel> channel)
    : options_(std::move(options)),
      timeout_(timeout),
      token_(std::move(token)),
      channel_(std::move(channel)) {
  studies_ = scalelab::v1::StudyService::NewStub(channel_);
  runs_ = scalelab::v1::RunService::NewStub(channel_);
  results_ = scalelab::v1::ResultService::NewStub(channel_);
  analysis_ = scalelab::v1::AnalysisService::NewStub(channel_);
  predictions_ = scalelab::v1::PredictionService::NewStub(channel_);
  archives_ = scalelab::v1::ArchiveService::NewStub(channel_);
  cluster_ = scalelab::v1::ClusterService::NewStub(channel_);
  auth_ = scalelab::v1::AuthService::NewStub(channel_);
  admin_ = scalelab::v1::AdminService::NewStub(channel_);
  agents_ = scalelab::v1::AgentService::NewStub(channel_);
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const ServerOptions& options,
                                                             absl::Duration timeout) {
  std::string token;
  if (options.address.socket_path.empty() && !options.token_file.empty()) {
    auto read = ReadToken(options.token_file);
    if (!read.ok()) return read.status();
    token = *std::move(read);
  }
  auto channel = NewChannel(options);
  if (!channel.ok()) return channel.status();
  std::unique_ptr<Connection> connection(
      new Connection(options, timeout, std::move(token), *std::move(channel)));
  if (const absl::Status status = connection->Connect(absl::Now() + timeout); !status.ok()) return status;
  return connection;
}

absl::Status Connection::Connect(absl::Time deadline) const {
  for (grpc_connectivity_state state = channel_->GetState(true); state != GRPC_CHANNEL_READY;
       state = channel_->GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) return Unreachable();
    if (!channel_->WaitForStateChange(state, ToChrono(deadline))) return Unreachable();
  }
  return absl::OkStatus();
}

bool Connection::WaitForServer(absl::Time deadline) const {
  return channel_->WaitForConnected(ToChrono(deadline));
}

std::string Connection::Token(absl::Time deadline, bool refused) const {
  if (!token_.empty() || !options_.address.encrypted) return token_;
  absl::MutexLock lock(&session_mutex_);
  const absl::Time now = absl::Now();
  if (refused) session_ = {};
  if (session_.usable(now) || !no_session_.ok()) return session_.secret;
  if (!refused) session_ = StoredSession(options_.address.text, now);
  if (session_.usable(now)) return session_.secret;
  auto made = NewSession(channel_, options_.address.text, std::min(deadline, now + timeout_));
  no_session_ = made.status();
  session_ = made.ok() ? *std::move(made) : SessionToken();
  return session_.secret;
}

bool Connection::Renew(const grpc::Status& status, absl::Time deadline) const {
  if (status.error_code() != grpc::StatusCode::UNAUTHENTICATED || !token_.empty()) return false;
  {
    absl::MutexLock lock(&session_mutex_);
    if (session_.secret.empty()) return false;
  }
  return !Token(deadline, /*refused=*/true).empty();
}

std::unique_ptr<grpc::ClientContext> Connection::MakeContext(absl::Time deadline) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(ToChrono(deadline));
  const std::string token = Token(deadline);
  if (!token.empty()) context->AddMetadata("authorization", absl::StrCat("Bearer ", token));
  return context;
}

absl::Status Connection::Repeat(size_t request_bytes,
                                const std::function<grpc::Status(grpc::ClientContext*)>& call) const {
  if (request_bytes > kMaxRequestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request has ", request_bytes, " bytes; the server accepts ", kMaxRequestBytes,
                     " (4 MiB) at most: split the study, or write its grid as axes"));
  }
  const absl::Time deadline = absl::Now() + timeout_;
  bool renewed = false;
  for (absl::Duration pause = absl::Milliseconds(50);; pause = std::min(2 * pause, absl::Seconds(1))) {
    const grpc::Status status = call(MakeContext(deadline).get());
    if (!renewed && Renew(status, deadline)) {
      renewed = true;
      continue;
    }
    // A status with a reason comes from the server itself: do not retry.
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || !ReasonOf(FromGrpc(status)).empty()) {
      return Explain(status);
    }
    // The server was there when we connected. Retry until the user's timeout, in case the server restarts.
    absl::SleepFor(std::min(pause, deadline - absl::Now()));
    if (!WaitForServer(deadline)) return Unreachable();
  }
}

absl::Status Connection::Unreachable() const {
  const std::string& path = options_.address.socket_path;
  if (!path.empty() && access(path.c_str(), W_OK) != 0 && errno == EACCES) {
    return absl::PermissionDeniedError(absl::StrCat(
        "no permission to open the socket ", path, ": ask the server's operator for an address and a token"));
  }
  if (options_.address.encrypted) {
    if (absl::Status why = WhyNotTrusted(options_, std::min(timeout_, kProbeTime)); !why.ok()) return why;
  }
  return absl::UnavailableError(
      absl::StrCat("no scalelab server answers at ", options_.address.text,
                   ": start one with `scalelabd --data DIR` or point --server/SCALELAB_SERVER at it"));
}

absl::Status Connection::Explain(const grpc::Status& grpc_status) const {
  absl::Status status = FromGrpc(grpc_status);
  const std::string& server = options_.address.text;
  if (status.code() == absl::StatusCode::kUnauthenticated) {
    absl::MutexLock lock(&session_mutex_);
    const std::string munge =
        no_session_.ok() ? "" : absl::StrCat("; no login with MUNGE: ", no_session_.message());
    const absl::string_view hint =
        ReasonOf(status).empty() ? "; give the file of a valid token with --token-file or SCALELAB_TOKEN_FILE"
                                 : "";
    return absl::UnauthenticatedError(
        absl::StrCat("the server at ", server, " rejects the credentials: ", status.message(), munge, hint));
  }
  // A status with a reason already explains what is wrong.
  if (status.ok() || !ReasonOf(status).empty()) return status;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return Unreachable();
    case absl::StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError(absl::StrCat("the server at ", server, " did not answer within ",
                                                      absl::FormatDuration(timeout_),
                                                      "; use a longer --timeout"));
    case absl::StatusCode::kUnimplemented:
      return absl::UnimplementedError(
          absl::StrCat("the server at ", server, " has another version and does not support this command"));
    case absl::StatusCode::kResourceExhausted:
      if (absl::StrContains(status.message(), "larger than max")) {
        return absl::InvalidArgumentError(absl::StrCat("the server at ", server,
                                                       " does not accept a request of this size (",
                                                       status.message(), "): split the study"));
      }
      return status;
    default:
      return status;
  }
}

}  // namespace scalelab::client
