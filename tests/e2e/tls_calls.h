// Calls of a service over TLS without the command line, with credentials that a test makes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "scalelab/v1/auth.grpc.pb.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {

// Returns the address HOST:PORT that a service serves.
std::string TcpOf(const Service& service);

// Returns a channel to this address, which trusts the certificate of the service.
std::shared_ptr<grpc::Channel> ChannelTo(const Service& service);

// Returns the context of one call, with a token unless it is empty.
std::unique_ptr<grpc::ClientContext> Context(const std::string& token = "");

// Returns what a client signs for the challenge of a server, if it sees the certificate of `seen`.
std::string TextForLogin(v1::AuthService::Stub& stub, const Service& seen);

// Logs in with a credential of MUNGE.
grpc::Status Login(v1::AuthService::Stub& stub, const std::string& credential,
                   v1::CreateSessionResponse* session);

// Fails the test unless the call was refused and the audit log has it with this message. `source`: how the caller was identified.
// Returns the message.
std::string AuditedRefusal(const Service& service, const std::string& action, const std::string& source,
                           const grpc::Status& status);

}  // namespace scalelab::e2e
