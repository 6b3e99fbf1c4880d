// Implements PredictionService.
#pragma once

#include "scalelab/v1/prediction.grpc.pb.h"
#include "server/rpc/handler_context.h"

namespace scalelab::server {

class PredictionService final : public v1::PredictionService::CallbackService {
 public:
  explicit PredictionService(const HandlerContext& handler) : handler_(handler) {}

  grpc::ServerUnaryReactor* CreatePredictions(grpc::CallbackServerContext*,
                                              const v1::CreatePredictionsRequest*,
                                              v1::CreatePredictionsResponse*) override;
  grpc::ServerUnaryReactor* ListPredictions(grpc::CallbackServerContext*, const v1::ListPredictionsRequest*,
                                            v1::ListPredictionsResponse*) override;

 private:
  const HandlerContext handler_;
};

}  // namespace scalelab::server
