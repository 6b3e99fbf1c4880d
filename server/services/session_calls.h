// The calls of AuthService that need no authentication: they exchange a MUNGE credential for a session token.
#pragma once

#include "scalelab/v1/auth.grpc.pb.h"
#include "server/munge/munge_login.h"
#include "server/rpc/handler_context.h"

namespace scalelab::server {

class SessionCalls {
 public:
  // `login` must outlive this object.
  SessionCalls(MungeLogin& login, const HandlerContext& handler) : login_(login), handler_(handler) {}

  grpc::ServerUnaryReactor* CreateChallenge(grpc::CallbackServerContext* context,
                                            v1::CreateChallengeResponse* response);
  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context,
                                          const v1::CreateSessionRequest* request,
                                          v1::CreateSessionResponse* response);

 private:
  MungeLogin& login_;
  const HandlerContext handler_;
};

}  // namespace scalelab::server
