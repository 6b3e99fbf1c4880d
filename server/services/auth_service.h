// Implements AuthService: the identity of the caller, logins, and personal tokens.
#pragma once

#include "scalelab/v1/auth.grpc.pb.h"
#include "server/rpc/handler_context.h"
#include "server/services/session_calls.h"

namespace scalelab::server {

class AuthService final : public v1::AuthService::CallbackService {
 public:
  AuthService(const HandlerContext& handler, MungeLogin& munge)
      : handler_(handler), sessions_(munge, handler) {}

  grpc::ServerUnaryReactor* GetIdentity(grpc::CallbackServerContext*, const v1::GetIdentityRequest*,
                                        v1::GetIdentityResponse*) override;
  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext*, const v1::CreateTokenRequest*,
                                        v1::CreateTokenResponse*) override;
  grpc::ServerUnaryReactor* ListTokens(grpc::CallbackServerContext*, const v1::ListTokensRequest*,
                                       v1::ListTokensResponse*) override;
  grpc::ServerUnaryReactor* RevokeToken(grpc::CallbackServerContext*, const v1::RevokeTokenRequest*,
                                        v1::RevokeTokenResponse*) override;
  grpc::ServerUnaryReactor* CreateWebLogin(grpc::CallbackServerContext*, const v1::CreateWebLoginRequest*,
                                           v1::CreateWebLoginResponse*) override;

  grpc::ServerUnaryReactor* CreateChallenge(grpc::CallbackServerContext* context,
                                            const v1::CreateChallengeRequest*,
                                            v1::CreateChallengeResponse* response) override {
    return sessions_.CreateChallenge(context, response);
  }
  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context,
                                          const v1::CreateSessionRequest* request,
                                          v1::CreateSessionResponse* response) override {
    return sessions_.CreateSession(context, request, response);
  }

 private:
  const HandlerContext handler_;
  SessionCalls sessions_;
};

v1::Identity ToIdentity(const Identity& caller);

}  // namespace scalelab::server
