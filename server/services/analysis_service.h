// Implements AnalysisService. It only reads the database.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "db/store.h"
#include "scalelab/v1/analysis.grpc.pb.h"
#include "server/rpc/client_call.h"
#include "server/rpc/handler_context.h"

namespace scalelab::server {

// Compute the responses of the two methods, without gRPC, from the studies that the caller of `call` may see. Return CANCELLED
// soon after `over` returns true, because nobody waits for the response any more.
absl::Status ComputeComparison(db::Store& store, ClientCall& call, const v1::CompareCellsRequest& request,
                               const std::function<bool()>& over, v1::CompareCellsResponse* response);
absl::Status ComputeAdvice(db::Store& store, ClientCall& call, const v1::AdviseRanksRequest& request,
                           const std::function<bool()>& over, v1::AdviseRanksResponse* response);

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
