#include "server/services/cluster_service.h"

#include "server/core/convert.h"
#include "server/services/reactors.h"

namespace scalelab::server {
namespace {

void Fill(const State& state, v1::GetClusterResponse* response) {
  std::map<int64_t, const LiveAllocation*> by_id;
  for (const auto& [id, allocation] : state.allocations) by_id[id] = allocation.get();
  for (const auto& [id, allocation] : by_id) {
    *response->add_allocations() = ToAllocation(*allocation, state);
    for (const auto& [index, worker] : allocation->workers) {
      *response->add_workers() = ToWorker(worker, allocation->row.token);
    }
  }
  int64_t queued = 0;
  for (const auto& [id, study] : state.studies) queued += static_cast<int64_t>(study->queued.size());
  response->set_queued_runs(queued);
  response->set_running_attempts(static_cast<int64_t>(state.attempts.size()));
  if (!state.scheduler.error.empty()) {
    response->set_scheduler_error(state.scheduler.error);
    SetTime(state.scheduler.since, response->mutable_scheduler_error_time());
  }
}

}  // namespace

grpc::ServerUnaryReactor* ClusterService::GetCluster(grpc::CallbackServerContext* context,
                                                     const v1::GetClusterRequest*,
                                                     v1::GetClusterResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  response->set_version(version_);
  response->set_scheduler(scheduler_.name());
  response->set_slots(scheduler_.capacity().slots);
  SetTime(started_, response->mutable_start_time());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.View([this, reactor, response](absl::StatusOr<ClusterView> view) {
    if (view.ok()) {
      for (const auto& partition : view->partitions) *response->add_partitions() = ToPartition(partition);
      for (const auto& node : view->nodes) *response->add_nodes() = ToNode(node);
    } else {
      response->set_scheduler_error(std::string(view.status().message()));
    }
    coordinator_.Read([reactor, response](const State* state) {
      if (state == nullptr) return reactor->Finish({grpc::StatusCode::UNAVAILABLE, "scalelabd is stopping"});
      Fill(*state, response);
      reactor->Finish(grpc::Status::OK);
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::ListFrameworks(grpc::CallbackServerContext* context,
                                                         const v1::ListFrameworksRequest*,
                                                         v1::ListFrameworksResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  frameworks_.Ask({EngineNames().begin(), EngineNames().end()},
                  [reactor, response](absl::StatusOr<FrameworkStates> states) {
                    if (!states.ok()) return reactor->Finish(ToGrpc(states.status()));
                    for (absl::string_view engine : EngineNames())
                      *response->add_frameworks() = std::move((*states)[std::string(engine)]);
                    reactor->Finish(grpc::Status::OK);
                  });
  return reactor;
}

}  // namespace scalelab::server
