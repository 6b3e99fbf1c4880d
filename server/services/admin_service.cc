#include "server/services/admin_service.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/status.h"
#include "server/core/accounting.h"
#include "server/core/convert.h"
#include "server/identity/permissions.h"
#include "server/time/clock.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kFlushLimit = absl::Seconds(5);

absl::StatusOr<db::AuditFilter> FilterOf(const v1::ListAuditEntriesRequest& request) {
  db::AuditFilter filter;
  filter.user = request.user();
  // These functions return the nearest possible number instead of overflowing.
  filter.since = absl::ToUnixMicros(absl::FromUnixSeconds(request.since().seconds()) +
                                    absl::Nanoseconds(request.since().nanos()));
  filter.refused_only = request.refused_only();
  filter.limit = request.page_size() <= 0 ? 100 : std::min(request.page_size(), 1000);
  if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &filter.before_id))
    return InvalidFields({{"page_token", "page_token is no next_page_token of ListAuditEntries"}});
  return filter;
}

void Fill(const db::AuditRow& row, v1::ListAuditEntriesResponse::Entry* entry) {
  SetTime(row.time, entry->mutable_time());
  entry->set_user(row.user);
  entry->set_source(row.source);
  entry->set_address(row.address);
  entry->set_action(row.action);
  entry->set_target(row.target);
  entry->set_result(row.result);
  entry->set_detail(row.detail);
  entry->set_count(row.count);
}

// Longest duration of a Prune call, shorter than the usual timeout of clients. The service removes
// the rest later.
constexpr absl::Duration kPruneTime = absl::Seconds(45);

constexpr size_t kMostEntries = 1000;
constexpr size_t kLongestReason = 200;

void FillUsage(const State& state, db::Micros now, const Identity&, v1::ListUsageResponse& response) {
  const CurrentUse use(state, now);
  std::map<std::string, v1::ListUsageResponse::Usage> users;
  for (const std::string& owner : state.usage.owners()) users[owner];
  for (const PendingQueue& queue : use.queues()) {
    const Use of_queue = use.UseOf(queue);
    v1::ListUsageResponse::Usage& user = users[queue.first];
    user.set_pending_allocations(user.pending_allocations() + of_queue.pending_allocations);
    user.set_running_allocations(user.running_allocations() + of_queue.running_allocations);
  }
  for (const auto& [id, attempt] : state.attempts) {
    if (const LiveStudy* study = state.study(attempt->study_id)) {
      v1::ListUsageResponse::Usage& user = users[study->row.owner];
      user.set_running_runs(user.running_runs() + 1);
    }
  }
  for (auto& [owner, user] : users) {
    const db::UsageRow row = use.UsageOf(owner);
    user.set_user(owner);
    user.set_decayed_node_seconds(use.Share(owner));
    user.set_node_seconds(row.node_seconds);
    user.set_gpu_seconds(row.gpu_seconds);
    user.set_gpu_seconds_week(use.GpuSecondsOfWeek(owner));
    *response.add_usages() = std::move(user);
  }
  std::stable_sort(
      response.mutable_usages()->begin(), response.mutable_usages()->end(),
      [](const auto& a, const auto& b) { return a.decayed_node_seconds() > b.decayed_node_seconds(); });
  response.set_half_life_seconds(absl::ToDoubleSeconds(state.usage.half_life()));
}

// Lists the queue. A study that the caller may not see has a position with its reasons, but no name, and nothing that it waits
// for: that may contain error messages of its runs.
void FillQueue(const State& state, db::Micros now, const Identity& caller, v1::ListQueueResponse& response) {
  for (QueueEntry& from : ListQueue(state, now, kMostEntries)) {
    v1::ListQueueResponse::Entry& entry = *response.add_entries();
    const LiveStudy& study = *from.study;
    entry.set_position(response.entries_size());
    const bool visible = MaySee(caller, study.row);
    entry.set_study(visible ? StudyName(study.row.id) : "");
    entry.set_display_name(visible ? study.row.name : "(private)");
    entry.set_owner(study.row.owner);
    entry.set_partition(study.spec.resources().partition());
    entry.set_priority(study.row.priority);
    entry.set_owner_usage(from.owner_usage);
    entry.set_queued_runs(static_cast<int32_t>(study.queued.size() + study.delayed.size()));
    entry.set_reason(visible ? std::move(from.reason) : std::move(from.order));
  }
}

absl::Status CheckReason(const std::string& reason) {
  const bool control =
      std::any_of(reason.begin(), reason.end(), [](char c) { return absl::ascii_iscntrl(c); });
  if (reason.size() <= kLongestReason && !control) return absl::OkStatus();
  return InvalidFields(
      {{"reason", absl::StrCat("reason must be one line of at most ", kLongestReason, " bytes")}});
}

}  // namespace

template <typename Response, typename Fill>
grpc::ServerUnaryReactor* AdminService::FromState(grpc::CallbackServerContext* context, Response* response,
                                                  Fill fill) {
  return BeginCall(handler_, context, response, [this, fill](const auto& call) {
    coordinator_.Read([call, fill](const State* state) {
      if (call->over()) return;
      if (state == nullptr) return call->Finish(NoState());
      fill(*state, absl::ToUnixMicros(absl::Now()), call->caller(), call->response);
      call->Finish(absl::OkStatus());
    });
  });
}

grpc::ServerUnaryReactor* AdminService::ListUsage(grpc::CallbackServerContext* context,
                                                  const v1::ListUsageRequest*,
                                                  v1::ListUsageResponse* response) {
  return FromState(context, response, FillUsage);
}

grpc::ServerUnaryReactor* AdminService::ListQueue(grpc::CallbackServerContext* context,
                                                  const v1::ListQueueRequest*,
                                                  v1::ListQueueResponse* response) {
  return FromState(context, response, FillQueue);
}

grpc::ServerUnaryReactor* AdminService::SetDrain(grpc::CallbackServerContext* context,
                                                 const v1::SetDrainRequest* request,
                                                 v1::SetDrainResponse* response) {
  return BeginCall(handler_, context, response, [this, request](const auto& call) {
    if (auto s = MustBeAdmin(call->caller(), "drain the service"); !s.ok()) return call->Finish(s);
    if (auto s = CheckReason(request->reason()); !s.ok()) return call->Finish(s);
    coordinator_.SetDrain(request->drain(), request->reason(), [call](const absl::StatusOr<int>& live) {
      if (live.ok()) call->response.set_live_attempts(*live);
      call->Finish(live.status());
    });
  });
}

grpc::ServerUnaryReactor* AdminService::ListAuditEntries(grpc::CallbackServerContext* context,
                                                         const v1::ListAuditEntriesRequest* request,
                                                         v1::ListAuditEntriesResponse* response) {
  // Prune waits for writes, so it must not use a thread of the pool `reads`.
  return AnswerOn(handler_.pools.heavy, handler_, context, response,
                  [this, request = *request](auto& call) -> absl::Status {
                    if (auto s = MustBeAdmin(call.caller(), "read the audit log"); !s.ok()) return s;
                    const absl::StatusOr<db::AuditFilter> filter = FilterOf(request);
                    if (!filter.ok()) return filter.status();
                    if (auto s = handler_.access.identities().audit().Flush(kFlushLimit); !s.ok()) return s;
                    const auto rows = handler_.store.ListAudit(*filter);
                    if (!rows.ok()) return rows.status();
                    for (const db::AuditRow& row : *rows) Fill(row, call.response.add_entries());
                    if (static_cast<int>(rows->size()) == filter->limit)
                      call.response.set_next_page_token(absl::StrCat(rows->back().id));
                    return absl::OkStatus();
                  });
}

grpc::ServerUnaryReactor* AdminService::Prune(grpc::CallbackServerContext* context,
                                              const v1::PruneRequest* request, v1::PruneResponse* response) {
  return AnswerOn(handler_.pools.heavy, handler_, context, response,
                  [this, dry_run = request->dry_run()](auto& call) -> absl::Status {
                    if (auto s = MustBeAdmin(call.caller(), "remove old data"); !s.ok()) return s;
                    if (prune_ == nullptr) return absl::UnimplementedError("this server has no retention");
                    const absl::Duration until = Clock::System().Steady() + kPruneTime;
                    auto pruned = prune_(
                        dry_run, [&call, until] { return call.over() || Clock::System().Steady() >= until; });
                    if (pruned.ok()) call.response = *std::move(pruned);
                    return pruned.status();
                  });
}

}  // namespace scalelab::server
