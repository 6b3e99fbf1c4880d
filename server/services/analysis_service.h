// Implements AnalysisService. It only reads the database.
#pragma once

#include "scalelab/v1/analysis.grpc.pb.h"
#include "server/rpc/handler_context.h"

namespace scalelab::server {

class AnalysisService final : public v1::AnalysisService::CallbackService {
 public:
  explicit AnalysisService(const HandlerContext& handler) : handler_(handler) {}

  grpc::ServerUnaryReactor* CompareCells(grpc::CallbackServerContext*, const v1::CompareCellsRequest*,
                                         v1::CompareCellsResponse*) override;
  grpc::ServerUnaryReactor* AdviseRanks(grpc::CallbackServerContext*, const v1::AdviseRanksRequest*,
                                        v1::AdviseRanksResponse*) override;

 private:
  const HandlerContext handler_;
};

}  // namespace scalelab::server
