#include "tests/e2e/tls_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "munge/login_text.h"
#include "tls/certificate.h"
#include "tls/credentials.h"

namespace scalelab::e2e {

std::string TcpOf(const Service& service) {
  for (const auto word : absl::StrSplit(service.ready(), ' ')) {
    if (absl::StrContains(word, ':') && !absl::StartsWith(word, "unix:")) return std::string(word);
  }
  return "";
}

std::shared_ptr<grpc::Channel> ChannelTo(const Service& service) {
  const std::string certificate = tls::CertificatesOf(ReadFile(service.data() + "/tls.pem"));
  grpc::ChannelArguments arguments;
  const auto credentials = tls::Trust(certificate, arguments);
  EXPECT_TRUE(credentials.ok()) << credentials.status();
  return grpc::CreateCustomChannel(TcpOf(service), *credentials, arguments);
}

std::unique_ptr<grpc::ClientContext> Context(const std::string& token) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  return context;
}

std::string TextForLogin(v1::AuthService::Stub& stub, const Service& seen) {
  v1::CreateChallengeResponse response;
  const grpc::Status status = stub.CreateChallenge(Context().get(), {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  const auto fingerprint = tls::Fingerprint(tls::CertificatesOf(ReadFile(seen.data() + "/tls.pem")));
  EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
  return LoginText(response.challenge(), *fingerprint).value_or("");
}

grpc::Status Login(v1::AuthService::Stub& stub, const std::string& credential,
                   v1::CreateSessionResponse* session) {
  v1::CreateSessionRequest request;
  request.set_munge_credential(credential);
  return stub.CreateSession(Context().get(), request, session);
}

std::string AuditedRefusal(const Service& service, const std::string& action, const std::string& source,
                           const grpc::Status& status) {
  const bool denied = status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
  EXPECT_TRUE(denied || status.error_code() == grpc::StatusCode::UNAUTHENTICATED)
      << action << ": " << status.error_code() << " " << status.error_message();
  const nlohmann::json entries = service.Json({"admin", "audit", "--refused"})["entries"];
  EXPECT_TRUE(std::any_of(entries.begin(), entries.end(),
                          [&](const auto& entry) {
                            return entry["action"] == action && entry["source"] == source &&
                                   entry["result"] == (denied ? "PERMISSION_DENIED" : "UNAUTHENTICATED") &&
                                   entry["detail"] == status.error_message();
                          }))
      << action << ": " << status.error_message() << "\n"
      << entries;
  return status.error_message();
}

}  // namespace scalelab::e2e
