#include "server/services/worker_service.h"

#include "server/core/ingest.h"
#include "server/services/reactors.h"

namespace scalelab::server {

grpc::ServerUnaryReactor* WorkerService::Synchronize(grpc::CallbackServerContext* context,
                                                     const v1::SynchronizeRequest* request,
                                                     v1::SynchronizeResponse* response) {
  const auto allocation = auth_.CheckWorker(*context);
  if (!allocation.ok()) return Answer(context, allocation.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.Synchronize(*allocation, *request,
                           [reactor, response](absl::StatusOr<v1::SynchronizeResponse> desired) {
                             if (desired.ok()) *response = *std::move(desired);
                             reactor->Finish(ToGrpc(desired.status()));
                           });
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::ReportEvents(grpc::CallbackServerContext* context,
                                                      const v1::ReportEventsRequest* request,
                                                      v1::ReportEventsResponse* response) {
  const auto allocation = auth_.CheckWorker(*context);
  if (!allocation.ok()) return Answer(context, allocation.status());
  std::vector<ParsedBatch> batches;
  batches.reserve(request->batches_size());
  for (const v1::EventBatch& batch : request->batches()) {
    absl::StatusOr<ParsedBatch> parsed = ParseBatch(batch);
    if (!parsed.ok()) return Answer(context, parsed.status());
    batches.push_back(*std::move(parsed));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.Report(
      std::move(batches),
      [reactor, response](absl::StatusOr<std::vector<v1::ReportEventsResponse::Stream>> streams) {
        if (streams.ok()) {
          for (auto& stream : *streams) *response->add_streams() = std::move(stream);
        }
        reactor->Finish(ToGrpc(streams.status()));
      });
  return reactor;
}

}  // namespace scalelab::server
