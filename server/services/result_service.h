// Implements ResultService. It only reads the database.
#pragma once

#include "scalelab/v1/result.grpc.pb.h"
#include "server/rpc/handler_context.h"

namespace scalelab::server {

class ResultService final : public v1::ResultService::CallbackService {
 public:
  explicit ResultService(const HandlerContext& handler) : handler_(handler) {}

  grpc::ServerUnaryReactor* GetCurve(grpc::CallbackServerContext*, const v1::GetCurveRequest*,
                                     v1::GetCurveResponse*) override;
  grpc::ServerWriteReactor<v1::ReadPointsResponse>* ReadPoints(grpc::CallbackServerContext*,
                                                               const v1::ReadPointsRequest*) override;

 private:
  const HandlerContext handler_;
};

}  // namespace scalelab::server
