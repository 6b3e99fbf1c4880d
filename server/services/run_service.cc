#include "server/services/run_service.h"

#include <algorithm>
#include <fstream>
#include <unordered_map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/core/explain.h"
#include "server/services/lookup.h"
#include "server/services/reactors.h"

namespace scalelab::server {
namespace {

constexpr size_t kLogPiece = 64 * 1024;

// Reads one or both outputs of a rank in pieces, in order.
class LogReader {
 public:
  LogReader(const std::string& directory, int rank, v1::ReadRunLogRequest::Stream which) {
    const std::string base = absl::StrCat(directory, "/rank-", rank);
    if (which != v1::ReadRunLogRequest::STDERR)
      files_.emplace_back(v1::ReadRunLogRequest::STDOUT, base + ".out");
    if (which != v1::ReadRunLogRequest::STDOUT)
      files_.emplace_back(v1::ReadRunLogRequest::STDERR, base + ".err");
  }

  absl::StatusOr<bool> Next(v1::ReadRunLogResponse* response) {
    for (; at_ < files_.size(); ++at_, open_ = false) {
      if (!open_) {
        in_ = std::ifstream(files_[at_].second, std::ios::binary);
        open_ = true;
        if (!in_) {
          if (files_.size() > 1) continue;
          return absl::NotFoundError(absl::StrCat("there is no ", files_[at_].second,
                                                  "; check that the attempt has this rank and has started"));
        }
      }
      std::string& data = *response->mutable_data();
      data.resize(kLogPiece);
      in_.read(data.data(), static_cast<std::streamsize>(data.size()));
      data.resize(static_cast<size_t>(in_.gcount()));
      response->set_stream(files_[at_].first);
      if (!data.empty()) return true;
    }
    return false;
  }

 private:
  std::vector<std::pair<v1::ReadRunLogRequest::Stream, std::string>> files_;
  size_t at_ = 0;
  bool open_ = false;
  std::ifstream in_;
};

void FillSummary(const db::RunSummary& from, v1::Run* run) {
  for (const auto& [key, value] : from.metrics) (*run->mutable_summary())[key] = value;
  if (from.peak_memory) (*run->mutable_summary())["run/peak_memory_bytes"] = *from.peak_memory;
  if (from.device_memory) (*run->mutable_summary())["run/device_memory_bytes"] = *from.device_memory;
}

}  // namespace

absl::Status RunService::FillRun(const db::RunRow& row, v1::Run* run) {
  const auto cells = store_.ListCells(row.study_id);
  if (!cells.ok()) return cells.status();
  for (const db::CellRow& cell : *cells) {
    if (cell.id == row.cell_id) *run = ToRun(row, cell);
  }
  return absl::OkStatus();
}

absl::Status RunService::Fill(int64_t run_id, v1::Run* run) {
  const auto row = store_.GetRun(run_id);
  if (!row.ok()) return row.status();
  if (auto s = FillRun(*row, run); !s.ok()) return s;
  const auto attempts = store_.ListAttempts(run_id);
  if (!attempts.ok()) return attempts.status();
  for (const db::AttemptRow& attempt : *attempts) {
    const auto streams = store_.ListStreams(attempt.id);
    if (!streams.ok()) return streams.status();
    const auto allocation = store_.GetAllocation(attempt.allocation_id);
    *run->add_attempts() =
        ToAttempt(attempt, row->study_id, allocation.ok() ? allocation->token : std::string(), *streams);
  }
  if (const auto summary = store_.GetSummary(run_id); summary.ok()) FillSummary(*summary, run);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* RunService::GetRun(grpc::CallbackServerContext* context,
                                             const v1::GetRunRequest* request, v1::GetRunResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  const auto row = FindRun(store_, request->name());
  return Answer(context, row.ok() ? Fill(row->id, response->mutable_run()) : row.status());
}

grpc::ServerUnaryReactor* RunService::ListRuns(grpc::CallbackServerContext* context,
                                               const v1::ListRunsRequest* request,
                                               v1::ListRunsResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  const auto study = FindStudy(store_, request->parent());
  if (!study.ok()) return Answer(context, study.status());
  db::RunFilter filter;
  filter.study_id = study->id;
  filter.limit = request->page_size() <= 0 ? 1000 : std::min(request->page_size(), 10'000);
  if (!request->page_token().empty() && !absl::SimpleAtoi(request->page_token(), &filter.after_position)) {
    return Answer(context, InvalidFields({{"page_token", "page_token is no next_page_token of ListRuns"}}));
  }
  if (request->state() != v1::Run::STATE_UNSPECIFIED)
    filter.state = static_cast<db::RunState>(request->state());
  const auto cells = store_.ListCells(study->id);
  if (!cells.ok()) return Answer(context, cells.status());
  std::unordered_map<int64_t, const db::CellRow*> cell_by_id;
  for (const db::CellRow& cell : *cells) cell_by_id[cell.id] = &cell;
  const auto rows = store_.ListRuns(filter);
  if (!rows.ok()) return Answer(context, rows.status());
  std::unordered_map<int64_t, double> throughputs;
  if (!rows->empty()) {
    const auto [first, last] = std::minmax_element(
        rows->begin(), rows->end(), [](const db::RunRow& a, const db::RunRow& b) { return a.id < b.id; });
    const auto summaries = store_.ListSummaries(first->id, last->id);
    if (!summaries.ok()) return Answer(context, summaries.status());
    for (const db::RunSummary& summary : *summaries) {
      if (summary.throughput) throughputs[summary.run_id] = *summary.throughput;
    }
  }
  for (const db::RunRow& row : *rows) {
    v1::Run* run = response->add_runs();
    *run = ToRun(row, *cell_by_id.at(row.cell_id));
    if (const auto found = throughputs.find(row.id); found != throughputs.end()) {
      (*run->mutable_summary())["run/throughput"] = found->second;
    }
  }
  if (static_cast<int>(rows->size()) == filter.limit) {
    response->set_next_page_token(absl::StrCat(rows->back().position));
  }
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* RunService::CancelRun(grpc::CallbackServerContext* context,
                                                const v1::CancelRunRequest* request,
                                                v1::CancelRunResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  const auto row = FindRun(store_, request->name());
  if (!row.ok()) return Answer(context, row.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.CancelRun(row->study_id, row->id, [this, reactor, response, id = row->id](absl::Status s) {
    if (!s.ok()) return reactor->Finish(ToGrpc(s));
    readers_.Run([this, reactor, response, id](absl::Status status) {
      if (status.ok()) status = Fill(id, response->mutable_run());
      reactor->Finish(ToGrpc(status));
    });
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::ReadRunLogResponse>* RunService::ReadRunLog(
    grpc::CallbackServerContext* context, const v1::ReadRunLogRequest* request) {
  using Stream = GeneratedStream<v1::ReadRunLogResponse>;
  if (auto s = auth_.CheckClient(*context); !s.ok()) return new Stream(s);
  const auto run = FindRun(store_, request->name());
  if (!run.ok()) return new Stream(run.status());
  const auto attempt = FindAttempt(store_, *run, request->attempt());
  if (!attempt.ok()) return new Stream(attempt.status());
  auto reader = std::make_shared<LogReader>(attempt->directory, request->rank(), request->stream());
  return new Stream([reader](v1::ReadRunLogResponse* response) { return reader->Next(response); });
}

grpc::ServerUnaryReactor* RunService::ExplainRun(grpc::CallbackServerContext* context,
                                                 const v1::ExplainRunRequest* request,
                                                 v1::ExplainRunResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  const auto row = FindRun(store_, request->name());
  if (!row.ok()) return Answer(context, row.status());
  if (auto s = FillRun(*row, response->mutable_run()); !s.ok()) return Answer(context, s);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.Read([this, reactor, response, row = *row](const State* state) {
    if (state == nullptr) return reactor->Finish({grpc::StatusCode::UNAVAILABLE, "scalelabd is stopping"});
    if (const LiveStudy* study = state->study(row.study_id)) {
      SetProgress(study->runs[row.position], response->mutable_run());
      for (v1::Reason& reason :
           server::ExplainRun(*state, *study, row.position, absl::ToUnixMicros(absl::Now()))) {
        *response->add_reasons() = std::move(reason);
      }
      return reactor->Finish(grpc::Status::OK);
    }
    // The study is final, and may be so only since `row` was read: the final row is in the database.
    readers_.Run([this, reactor, response, id = row.id](absl::Status status) {
      if (!status.ok()) return reactor->Finish(ToGrpc(status));
      const auto last = store_.GetRun(id);
      if (last.ok()) {
        SetProgress(*last, response->mutable_run());
        *response->add_reasons() = FinalReason(*last);
      }
      reactor->Finish(ToGrpc(last.status()));
    });
  });
  return reactor;
}

}  // namespace scalelab::server
