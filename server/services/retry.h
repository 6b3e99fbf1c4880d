// Queues failed runs again.
#pragma once

#include <memory>
#include <utility>

#include "server/core/coordinator.h"
#include "server/core/reload.h"
#include "server/rpc/handler_context.h"

namespace scalelab::server {

// Retries runs as Lifecycle::Retry does. Then calls `answer(UnaryCall&)`, which returns the status of the
// call, on a thread that may read the database. The coordinator does not keep final studies, so this function
// reads a final study from the database first.
template <typename Response, typename Finisher>
void RetryRuns(Coordinator& coordinator, const HandlerContext& handler, int64_t study_id, int64_t run_id,
               std::shared_ptr<UnaryCall<Response>> call, Finisher answer) {
  coordinator.Read([=, &coordinator, &handler](const State* state) {
    if (state == nullptr) return call->Finish(NoState());
    const bool live = state->study(study_id) != nullptr;
    ContinueOn(
        handler.pools.reads, call,
        [=, &coordinator, &handler, changes = state->final_changes](const auto& in_progress) -> absl::Status {
          std::unique_ptr<LiveStudy> study;
          if (!live) {
            auto loaded = LoadFinalStudy(handler.store, study_id);
            if (!loaded.ok()) return loaded.status();
            study = *std::move(loaded);
          }
          coordinator.Retry(study_id, run_id, std::move(study), changes,
                            [&handler, in_progress, answer](const absl::Status& s) {
                              if (!s.ok()) return in_progress->Finish(s);
                              FinishOn(handler.pools.reads, in_progress, answer);
                            });
          return absl::OkStatus();
        });
  });
}

}  // namespace scalelab::server
