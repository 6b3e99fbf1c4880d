// Implements ResultService. It only reads the database.
#pragma once

#include "db/store.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "server/services/auth.h"

namespace scalelab::server {

class ResultService final : public v1::ResultService::CallbackService {
 public:
  ResultService(db::Store& store, const Auth& auth) : store_(store), auth_(auth) {}

  grpc::ServerUnaryReactor* GetCurve(grpc::CallbackServerContext*, const v1::GetCurveRequest*,
                                     v1::GetCurveResponse*) override;
  grpc::ServerWriteReactor<v1::ReadPointsResponse>* ReadPoints(grpc::CallbackServerContext*,
                                                               const v1::ReadPointsRequest*) override;

 private:
  db::Store& store_;
  const Auth& auth_;
};

}  // namespace scalelab::server
