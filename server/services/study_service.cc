#include "server/services/study_service.h"

#include <pwd.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/core/explain.h"
#include "server/core/submission.h"
#include "server/services/lookup.h"
#include "server/services/reactors.h"
#include "server/services/watch_stream.h"

namespace scalelab::server {
namespace {

constexpr size_t kLongestRequestId = 100;

// Returns the owner of a new study. On the Unix socket all callers have the account of this process.
std::string OwnerOf(const v1::CreateStudyRequest& request, const std::string& peer) {
  if (!request.owner().empty()) return request.owner();
  if (!absl::StartsWith(peer, "unix:")) return "remote";
  passwd entry{}, *found = nullptr;
  char buffer[4096];
  if (getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr)
    return entry.pw_name;
  return absl::StrCat("uid ", geteuid());
}

}  // namespace

absl::Status StudyService::Fill(int64_t study_id, v1::Study* study) {
  const auto row = store_.GetStudy(study_id);
  if (!row.ok()) return row.status();
  const auto counts = store_.CountRuns({study_id});
  if (!counts.ok()) return counts.status();
  *study = ToStudy(*row, counts->front(), true);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* StudyService::CreateStudy(grpc::CallbackServerContext* context,
                                                    const v1::CreateStudyRequest* request,
                                                    v1::CreateStudyResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  if (request->request_id().size() > kLongestRequestId) {
    return Answer(context,
                  InvalidFields({{"request_id", absl::StrCat("request_id has ", request->request_id().size(),
                                                             " characters; at most 100 are allowed")}}));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  frameworks_.Ask(FrameworkEngines(request->spec()),
                  [this, request, response, reactor,
                   owner = OwnerOf(*request, context->peer())](absl::StatusOr<FrameworkStates> engines) {
                    if (!engines.ok()) return reactor->Finish(ToGrpc(engines.status()));
                    Create(*request, owner, *engines, response, reactor);
                  });
  return reactor;
}

void StudyService::Create(const v1::CreateStudyRequest& request, const std::string& owner,
                          const FrameworkStates& engines, v1::CreateStudyResponse* response,
                          grpc::ServerUnaryReactor* reactor) {
  const auto finish = [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); };
  absl::StatusOr<StudyNeeds> needs = CheckStudy(request.spec(), scheduler_, engines);
  if (!needs.ok()) return finish(needs.status());
  NewStudy study = MakeNewStudy(request.spec(), std::move(needs->study), owner, request.request_id());
  if (request.validate_only()) {
    study.state->row.runs = static_cast<int64_t>(study.state->runs.size());
    *response->mutable_study() = ToStudy(study.state->row, {0, study.state->row.runs}, false);
    response->mutable_study()->clear_name();
    response->mutable_study()->clear_create_time();
    *response->mutable_study()->mutable_spec() = request.spec();
    return finish(absl::OkStatus());
  }
  if (!request.request_id().empty()) {
    const auto earlier = store_.FindRequest(owner, request.request_id());
    if (earlier.ok()) {
      if (earlier->spec != study.state->row.spec) {
        return finish(RequestIdReused(request.request_id(), earlier->id));
      }
      return finish(Fill(earlier->id, response->mutable_study()));
    }
    if (!absl::IsNotFound(earlier.status())) return finish(earlier.status());
  }
  // The response is made from the row to be stored: reading it back is not necessary.
  study.state->row.runs = static_cast<int64_t>(study.state->runs.size());
  study.state->row.created = absl::ToUnixMicros(absl::Now());
  *response->mutable_study() = ToStudy(study.state->row, {0, study.state->row.runs}, false);
  *response->mutable_study()->mutable_spec() = request.spec();
  coordinator_.Submit(std::move(study), [reactor, response](absl::StatusOr<int64_t> id) {
    if (id.ok()) response->mutable_study()->set_name(StudyName(*id));
    reactor->Finish(ToGrpc(id.status()));
  });
}

grpc::ServerUnaryReactor* StudyService::PlanStudy(grpc::CallbackServerContext* context,
                                                  const v1::PlanStudyRequest* request,
                                                  v1::PlanStudyResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  frameworks_.Ask(FrameworkEngines(request->spec()),
                  [this, request, response, reactor](absl::StatusOr<FrameworkStates> engines) {
                    if (!engines.ok()) return reactor->Finish(ToGrpc(engines.status()));
                    absl::StatusOr<StudyNeeds> needs = CheckStudy(request->spec(), scheduler_, *engines);
                    if (needs.ok()) {
                      AddScripts(scheduler_, *needs);
                      *response = std::move(needs->plan);
                    }
                    reactor->Finish(ToGrpc(needs.status()));
                  });
  return reactor;
}

grpc::ServerUnaryReactor* StudyService::GetStudy(grpc::CallbackServerContext* context,
                                                 const v1::GetStudyRequest* request,
                                                 v1::GetStudyResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  const auto row = FindStudy(store_, request->name());
  return Answer(context, row.ok() ? Fill(row->id, response->mutable_study()) : row.status());
}

grpc::ServerUnaryReactor* StudyService::ListStudies(grpc::CallbackServerContext* context,
                                                    const v1::ListStudiesRequest* request,
                                                    v1::ListStudiesResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  int64_t before = 0;
  if (!request->page_token().empty() && !absl::SimpleAtoi(request->page_token(), &before)) {
    return Answer(context,
                  InvalidFields({{"page_token", "page_token is no next_page_token of ListStudies"}}));
  }
  const int size = request->page_size() <= 0 ? 100 : std::min(request->page_size(), 1000);
  const auto rows = store_.ListStudies(before, size);
  if (!rows.ok()) return Answer(context, rows.status());
  std::vector<int64_t> ids;
  for (const db::StudyRow& row : *rows) ids.push_back(row.id);
  const auto counts = store_.CountRuns(ids);
  if (!counts.ok()) return Answer(context, counts.status());
  for (size_t i = 0; i < rows->size(); ++i)
    *response->add_studies() = ToStudy((*rows)[i], (*counts)[i], false);
  if (static_cast<int>(rows->size()) == size) response->set_next_page_token(absl::StrCat(rows->back().id));
  return Answer(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::WatchStudyResponse>* StudyService::WatchStudy(
    grpc::CallbackServerContext* context, const v1::WatchStudyRequest* request) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return new GeneratedStream<v1::WatchStudyResponse>(s);
  const auto row = FindStudy(store_, request->name());
  if (!row.ok()) return new GeneratedStream<v1::WatchStudyResponse>(row.status());
  v1::StudySpec spec;
  if (auto s = FromJson(row->spec, &spec); !s.ok()) return new GeneratedStream<v1::WatchStudyResponse>(s);
  return WatchStream::Start(coordinator_, readers_, row->id, std::move(spec),
                            [this, id = row->id](v1::Study* study) { return Fill(id, study); });
}

grpc::ServerUnaryReactor* StudyService::CancelStudy(grpc::CallbackServerContext* context,
                                                    const v1::CancelStudyRequest* request,
                                                    v1::CancelStudyResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  const auto row = FindStudy(store_, request->name());
  if (!row.ok()) return Answer(context, row.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.CancelStudy(row->id, [this, reactor, response, id = row->id](absl::Status s) {
    if (!s.ok()) return reactor->Finish(ToGrpc(s));
    readers_.Run([this, reactor, response, id](absl::Status status) {
      if (status.ok()) status = Fill(id, response->mutable_study());
      reactor->Finish(ToGrpc(status));
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* StudyService::DeleteStudy(grpc::CallbackServerContext* context,
                                                    const v1::DeleteStudyRequest* request,
                                                    v1::DeleteStudyResponse*) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  if (request->name() == "studies/last" || request->name() == "last") {
    return Answer(context, InvalidFields({{"name",
                                           "deleting 'last' is refused because it may have changed since you "
                                           "looked; give the study's number"}}));
  }
  const auto row = FindStudy(store_, request->name());
  if (!row.ok()) return Answer(context, row.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.DeleteStudy(row->id, [reactor](absl::Status s) { reactor->Finish(ToGrpc(s)); });
  return reactor;
}

grpc::ServerUnaryReactor* StudyService::ExplainStudy(grpc::CallbackServerContext* context,
                                                     const v1::ExplainStudyRequest* request,
                                                     v1::ExplainStudyResponse* response) {
  if (auto s = auth_.CheckClient(*context); !s.ok()) return Answer(context, s);
  const auto row = FindStudy(store_, request->name());
  if (!row.ok()) return Answer(context, row.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.Read([this, reactor, response, id = row->id](const State* state) {
    if (state == nullptr) return reactor->Finish({grpc::StatusCode::UNAVAILABLE, "scalelabd is stopping"});
    if (const LiveStudy* study = state->study(id)) {
      *response->mutable_study() = ToStudy(study->row, {study->counts.begin(), study->counts.end()}, false);
      for (v1::Reason& reason : server::ExplainStudy(*state, *study, absl::ToUnixMicros(absl::Now()))) {
        *response->add_reasons() = std::move(reason);
      }
      return reactor->Finish(grpc::Status::OK);
    }
    // The study is final: its result is in the database.
    readers_.Run([this, reactor, response, id](absl::Status status) {
      if (!status.ok()) return reactor->Finish(ToGrpc(status));
      const auto last = store_.GetStudy(id);
      const auto counts = store_.CountRuns({id});
      if (!last.ok() || !counts.ok())
        return reactor->Finish(ToGrpc(last.ok() ? counts.status() : last.status()));
      *response->mutable_study() = ToStudy(*last, counts->front(), false);
      *response->add_reasons() = FinalReason(*last, counts->front());
      reactor->Finish(grpc::Status::OK);
    });
  });
  return reactor;
}

}  // namespace scalelab::server
