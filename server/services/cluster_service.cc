#include "server/services/cluster_service.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/core/convert.h"
#include "server/identity/permissions.h"
#include "server/readers/filesystem_of.h"

namespace scalelab::server {
namespace {

// Hides which study and run an allocation serves, and the reason of its state, unless the caller may see the study.
void HidePrivate(const State& state, const LiveAllocation& from, const Identity& caller,
                 v1::Allocation* allocation) {
  const LiveStudy* study = state.study(from.row.study_id);
  if (study != nullptr ? MaySee(caller, study->row) : caller.IsAdmin()) return;
  allocation->clear_study();
  allocation->clear_run();
  allocation->clear_reason();  // may be an error of sbatch or of the run
}

void Fill(const State& state, const Identity& caller, v1::GetClusterResponse* response) {
  std::map<int64_t, const LiveAllocation*> by_id;
  for (const auto& [id, allocation] : state.allocations) by_id[id] = allocation.get();
  for (const auto& [id, allocation] : by_id) {
    v1::Allocation* added = response->add_allocations();
    *added = ToAllocation(*allocation, state);
    HidePrivate(state, *allocation, caller, added);
    for (const auto& [index, worker] : allocation->workers) {
      *response->add_workers() = ToWorker(worker, allocation->row.token);
    }
  }
  int64_t queued = 0;
  for (const auto& [id, study] : state.studies)
    queued += static_cast<int64_t>(study->queued.size() + study->delayed.size());
  response->set_queued_runs(queued);
  response->set_running_attempts(static_cast<int64_t>(state.attempts.size()));
  if (state.drain.on) {
    response->set_drain_reason(state.drain.reason);
    SetTime(state.drain.since, response->mutable_drain_time());
  }
  for (const AvoidedNode& node : state.bad_nodes.Avoided(absl::ToUnixMicros(absl::Now()))) {
    v1::AvoidedNode& avoided = *response->add_avoided_nodes();
    avoided.set_name(node.name);
    avoided.set_reason(node.reason);
    avoided.set_failures(node.failures);
    SetTime(node.since, avoided.mutable_since_time());
    SetTime(node.until, avoided.mutable_until_time());
  }
  if (!state.scheduler.error.empty()) {
    response->set_scheduler_error(state.scheduler.error);
    SetTime(state.scheduler.since, response->mutable_scheduler_error_time());
  }
}

}  // namespace

grpc::ServerUnaryReactor* ClusterService::GetCluster(grpc::CallbackServerContext* context,
                                                     const v1::GetClusterRequest*,
                                                     v1::GetClusterResponse* response) {
  return BeginCall(handler_, context, response, [&](const auto& call) {
    v1::GetClusterResponse& cluster = call->response;
    cluster.set_version(version_);
    cluster.set_scheduler(scheduler_.name());
    cluster.set_slots(scheduler_.capacity().slots);
    SetTime(started_, cluster.mutable_start_time());
    coordinator_.View([this, call](absl::StatusOr<ClusterView> view) {
      v1::GetClusterResponse& seen = call->response;
      if (call->over()) return;
      if (view.ok()) {
        for (const auto& partition : view->partitions) *seen.add_partitions() = ToPartition(partition);
        for (const auto& node : view->nodes) *seen.add_nodes() = ToNode(node);
      } else {
        seen.set_scheduler_error(std::string(view.status().message()));
      }
      coordinator_.Read([call](const State* state) {
        if (call->over()) return;
        if (state == nullptr) return call->Finish(NoState());
        Fill(*state, call->caller(), &call->response);
        call->Finish(absl::OkStatus());
      });
    });
  });
}

grpc::ServerUnaryReactor* ClusterService::ListFrameworks(grpc::CallbackServerContext* context,
                                                         const v1::ListFrameworksRequest*,
                                                         v1::ListFrameworksResponse* response) {
  return BeginCall(handler_, context, response, [&](const auto& call) {
    // The pool `files` handles the rest, because it reads files of the environments.
    ContinueOn(
        handler_.pools.files, call,
        [this](const auto& listing) {
          std::vector<std::string> names = frameworks_.Listed();
          const auto finish = [listing, names](absl::StatusOr<FrameworkStates> states) {
            if (listing->over()) return;
            if (states.ok()) {
              for (const std::string& name : names) {
                v1::Framework& framework = *listing->response.add_frameworks();
                framework = std::move((*states)[name]);
                framework.set_engine(name);
              }
            }
            listing->Finish(states.status());
          };
          frameworks_.Ask(names, finish);
          return absl::OkStatus();
        },
        Subject{"", FilesystemOf(frameworks_.PathFor({}))});
  });
}

}  // namespace scalelab::server
