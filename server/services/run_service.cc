#include "server/services/run_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/core/explain.h"
#include "server/readers/filesystem_of.h"
#include "server/runs/stored_runs.h"
#include "server/scheduler/agent/agent_scheduler.h"
#include "server/services/lookup.h"
#include "server/services/retry.h"

namespace scalelab::server {
namespace {

// Reads the run without its attempts and results.
absl::Status FillRun(db::Store& store, const db::RunRow& row, v1::Run* run) {
  const auto cells = FindCells(store, row.study_id, {row.cell_id});
  if (!cells.ok()) return cells.status();
  *run = ToRun(row, cells->at(row.cell_id));
  return absl::OkStatus();
}

// Reads the run with its attempts and results.
absl::Status Fill(db::Store& store, const db::RunRow& row, v1::Run* run) {
  if (auto s = FillRun(store, row, run); !s.ok()) return s;
  return AddResults(store, row, run);
}

absl::StatusOr<db::RunFilter> FilterOf(const v1::ListRunsRequest& request, int64_t study_id) {
  db::RunFilter filter;
  filter.study_id = study_id;
  filter.limit = request.page_size() <= 0 ? 1000 : std::min(request.page_size(), 10'000);
  if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &filter.after_position))
    return InvalidFields({{"page_token", "page_token is no next_page_token of ListRuns"}});
  if (request.state() != v1::Run::STATE_UNSPECIFIED)
    filter.state = static_cast<db::RunState>(request.state());
  return filter;
}

// The results of a run that lists contain.
struct ListedResults {
  std::optional<double> throughput;
  std::string fingerprint;
};

// Returns the results of the runs that have any, by run id.
absl::StatusOr<std::unordered_map<int64_t, ListedResults>> ResultsOf(db::Store& store,
                                                                     const std::vector<db::RunRow>& rows) {
  std::unordered_map<int64_t, ListedResults> results;
  if (rows.empty()) return results;
  const auto [first, last] = std::minmax_element(
      rows.begin(), rows.end(), [](const db::RunRow& a, const db::RunRow& b) { return a.id < b.id; });
  const auto summaries = store.ListSummaries(first->id, last->id);
  if (!summaries.ok()) return summaries.status();
  for (const db::RunSummary& summary : *summaries) {
    results[summary.run_id] = {summary.throughput, summary.fingerprint};
  }
  return results;
}

absl::Status ListRunsOf(db::Store& store, ClientCall& call, const v1::ListRunsRequest& request,
                        v1::ListRunsResponse* response) {
  const auto study = FindStudy(store, call, request.parent());
  if (!study.ok()) return study.status();
  const auto filter = FilterOf(request, study->id);
  if (!filter.ok()) return filter.status();
  const auto rows = store.ListRuns(*filter);
  if (!rows.ok()) return rows.status();
  if (request.view() == v1::ListRunsRequest::STATES) {
    for (const db::RunRow& row : *rows) response->mutable_states()->push_back(static_cast<char>(row.state));
    if (static_cast<int>(rows->size()) == filter->limit)
      response->set_next_page_token(absl::StrCat(rows->back().position));
    return absl::OkStatus();
  }
  std::set<int64_t> ids;
  for (const db::RunRow& row : *rows) ids.insert(row.cell_id);
  const auto cells = FindCells(store, study->id, ids);
  if (!cells.ok()) return cells.status();
  const auto results = ResultsOf(store, *rows);
  if (!results.ok()) return results.status();
  // The parameters of one run may be as large as a whole study.
  constexpr size_t kPageBytes = 16 << 20;
  size_t bytes = 0;
  for (const db::RunRow& row : *rows) {
    v1::Run* run = response->add_runs();
    *run = ToRun(row, cells->at(row.cell_id));
    if (request.view() == v1::ListRunsRequest::BRIEF) run->clear_spec();
    if (const auto found = results->find(row.id); found != results->end()) {
      run->set_fingerprint(found->second.fingerprint);
      if (found->second.throughput) (*run->mutable_summary())["run/throughput"] = *found->second.throughput;
    }
    bytes += run->ByteSizeLong();
    if (bytes >= kPageBytes) break;
  }
  if (response->runs_size() == filter->limit || response->runs_size() < static_cast<int>(rows->size()))
    response->set_next_page_token(absl::StrCat(response->runs(response->runs_size() - 1).position()));
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* RunService::GetRun(grpc::CallbackServerContext* context,
                                             const v1::GetRunRequest* request, v1::GetRunResponse* response) {
  return AnswerOn(handler_.pools.reads, handler_, context, response,
                  [this, name = request->name()](auto& call) {
                    const auto row = FindRun(handler_.store, call.client(), name);
                    return row.ok() ? Fill(handler_.store, *row, call.response.mutable_run()) : row.status();
                  });
}

grpc::ServerUnaryReactor* RunService::ListRuns(grpc::CallbackServerContext* context,
                                               const v1::ListRunsRequest* request,
                                               v1::ListRunsResponse* response) {
  return AnswerOn(handler_.pools.reads, handler_, context, response, [this, request = *request](auto& call) {
    return ListRunsOf(handler_.store, call.client(), request, &call.response);
  });
}

grpc::ServerUnaryReactor* RunService::CancelRun(grpc::CallbackServerContext* context,
                                                const v1::CancelRunRequest* request,
                                                v1::CancelRunResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    const auto row = FindRunToControl(handler_.store, call->client(), name);
    if (!row.ok()) return row.status();
    coordinator_.CancelRun(row->study_id, row->id, [this, call, id = row->id](const absl::Status& s) {
      if (!s.ok()) return call->Finish(s);
      FinishOn(handler_.pools.reads, call, [this, id](auto& cancelled) {
        const auto last = handler_.store.GetRun(id);
        return last.ok() ? Fill(handler_.store, *last, cancelled.response.mutable_run()) : last.status();
      });
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RunService::RetryRun(grpc::CallbackServerContext* context,
                                               const v1::RetryRunRequest* request,
                                               v1::RetryRunResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    const auto row = FindRunToControl(handler_.store, call->client(), name);
    if (!row.ok()) return row.status();
    RetryRuns(coordinator_, handler_, row->study_id, row->id, call, [this, id = row->id](auto& retried) {
      const auto last = handler_.store.GetRun(id);
      return last.ok() ? Fill(handler_.store, *last, retried.response.mutable_run()) : last.status();
    });
    return absl::OkStatus();
  });
}

// Returns a function that reads files of the directory. If the directory belongs to a user, the user's
// agent reads them.
ReadPiece RunService::PiecesOf(const std::string& directory) const {
  const std::string user = agents_ == nullptr ? "" : UserOfDirectory(runs_dir_, directory);
  if (user.empty()) return LocalPieces(directory);
  return [agents = agents_, user, directory](const std::string& name, int64_t offset) {
    return agents->ReadFile(user, directory, name, offset, kLogPiece);
  };
}

std::string RunService::WaitsFor(const std::string& directory) const {
  const std::string user = agents_ == nullptr ? "" : UserOfDirectory(runs_dir_, directory);
  return user.empty() ? FilesystemOf(directory) : "agent of " + user;
}

grpc::ServerWriteReactor<v1::ReadRunLogResponse>* RunService::ReadRunLog(
    grpc::CallbackServerContext* context, const v1::ReadRunLogRequest* request) {
  using Stream = GeneratedStream<v1::ReadRunLogResponse>;
  const auto client = BeginStream<v1::ReadRunLogResponse>(handler_, *context);
  if (!client.ok()) return Stream::Fail(client.status());
  if (request->offset() != 0 && request->stream() == v1::ReadRunLogRequest::STREAM_UNSPECIFIED) {
    return Stream::Fail(InvalidFields(
        {{"offset", "offset is a position in one output, but the request selects both; set stream"}}));
  }
  const auto log = std::make_shared<std::optional<LogReader>>();
  const auto find = [this, log, client = *client, request = *request]() -> absl::StatusOr<std::string> {
    const auto run = FindRun(handler_.store, *client, request.name());
    if (!run.ok()) {
      handler_.access.Audit(*client, run.status());
      return run.status();
    }
    const auto attempt = FindAttempt(handler_.store, *run, request.attempt());
    if (!attempt.ok()) return attempt.status();
    if (auto s = CheckLogsKept(handler_.store, *run, *attempt); !s.ok()) return s;
    log->emplace(PiecesOf(attempt->directory), request.rank(), request.stream(), request.offset());
    return WaitsFor(attempt->directory);
  };
  const auto next = [log](v1::ReadRunLogResponse* response) { return (*log)->Next(response); };
  const std::string run = "run " + request->name().substr(request->name().rfind('/') + 1);
  return Stream::Start(handler_.pools.logs, handler_.pools.timers, **client, handler_.call_limit, next,
                       {run, ""}, nullptr, find);
}

grpc::ServerUnaryReactor* RunService::ExplainRun(grpc::CallbackServerContext* context,
                                                 const v1::ExplainRunRequest* request,
                                                 v1::ExplainRunResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    const auto row = FindRun(handler_.store, call->client(), name);
    if (!row.ok()) return row.status();
    if (auto s = FillRun(handler_.store, *row, call->response.mutable_run()); !s.ok()) return s;
    coordinator_.Read([this, call, row = *row](const State* state) {
      if (call->over()) return;
      if (state == nullptr) return call->Finish(NoState());
      v1::ExplainRunResponse& answer = call->response;
      if (const LiveStudy* study = state->study(row.study_id)) {
        SetProgress(study->runs[row.position], answer.mutable_run());
        for (v1::Reason& reason :
             server::ExplainRun(*state, *study, row.position, absl::ToUnixMicros(absl::Now())))
          *answer.add_reasons() = std::move(reason);
        return call->Finish(absl::OkStatus());
      }
      // The study is final. It may have become final after `row` was read, so read the final row
      // from the database.
      FinishOn(handler_.pools.reads, call, [this, id = row.id](auto& explained) {
        const auto last = handler_.store.GetRun(id);
        if (!last.ok()) return last.status();
        SetProgress(*last, explained.response.mutable_run());
        *explained.response.add_reasons() = FinalReason(*last);
        return absl::OkStatus();
      });
    });
    return absl::OkStatus();
  });
}

}  // namespace scalelab::server
