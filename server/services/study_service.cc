#include "server/services/study_service.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/core/explain.h"
#include "server/services/lookup.h"
#include "server/services/retry.h"

namespace scalelab::server {
namespace {

constexpr size_t kLongestOwner = 64;
constexpr size_t kLongestRequestId = 100;

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || absl::StrContains("._@+-", c); }

// Returns a violation unless `value` has at most `longest` characters, all of them safe in logs and terminals.
std::optional<FieldViolation> CheckName(const std::string& field, const std::string& value, size_t longest) {
  if (value.size() > longest) {
    return FieldViolation{
        field, absl::StrCat(field, " has ", value.size(), " characters; at most ", longest, " are allowed")};
  }
  if (!std::all_of(value.begin(), value.end(), IsNameCharacter)) {
    return FieldViolation{field,
                          absl::StrCat(field, " '", absl::CHexEscape(value),
                                       "' has a character that is not allowed; use letters, digits and "
                                       ". _ @ + -")};
  }
  return std::nullopt;
}

absl::Status CheckNames(const v1::CreateStudyRequest& request) {
  std::vector<FieldViolation> violations;
  if (auto v = CheckName("owner", request.owner(), kLongestOwner)) violations.push_back(*std::move(v));
  if (auto v = CheckName("request_id", request.request_id(), kLongestRequestId))
    violations.push_back(*std::move(v));
  return violations.empty() ? absl::OkStatus() : InvalidFields(std::move(violations));
}

// Returns the owner of a new study. On the Unix socket all callers have the account of this process.
std::string OwnerOf(const v1::CreateStudyRequest& request, bool local) {
  if (!request.owner().empty()) return request.owner();
  if (!local) return "remote";
  passwd entry{}, *found = nullptr;
  char buffer[4096];
  std::string name = absl::StrCat("uid-", geteuid());
  if (getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr)
    name = entry.pw_name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !IsNameCharacter(c); }, '_');
  return name.substr(0, kLongestOwner);
}

}  // namespace

absl::Status ReadStudy(db::Store& store, int64_t study_id, v1::Study* study) {
  const auto row = store.GetStudy(study_id);
  if (!row.ok()) return row.status();
  const auto counts = store.CountRuns({study_id});
  if (!counts.ok()) return counts.status();
  *study = ToStudy(*row, counts->front(), true);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* StudyService::CreateStudy(grpc::CallbackServerContext* context,
                                                    const v1::CreateStudyRequest* request,
                                                    v1::CreateStudyResponse* response) {
  if (auto s = handler_.access.CheckClient(*context); !s.ok()) return Answer(context, s);
  if (auto s = CheckNames(*request); !s.ok()) return Answer(context, s);
  auto call = CreateCall::Start(context, response, handler_.call_limit);
  auto creation =
      std::make_shared<const Creation>(Creation{*request, OwnerOf(*request, handler_.access.local()), call});
  if (request->request_id().empty() || request->validate_only()) {
    AskAndCreate(std::move(creation));
    return call->reactor();
  }
  // A retry is answered before the study is checked again: what made it valid may have changed.
  ContinueOn(handler_.pools.reads, call, [this, creation](const auto&) {
    const absl::StatusOr<bool> answered = AnswerEarlier(*creation);
    if (answered.ok() && !*answered) AskAndCreate(creation);
    return answered.status();
  });
  return call->reactor();
}

absl::StatusOr<bool> StudyService::AnswerEarlier(const Creation& creation) {
  const std::string& id = creation.request.request_id();
  const auto earlier = handler_.store.FindRequest(creation.owner, id);
  if (absl::IsNotFound(earlier.status())) return false;
  if (!earlier.ok()) return earlier.status();
  if (earlier->spec != ToJson(creation.request.spec())) return RequestIdReused(id, earlier->id);
  if (auto s = ReadStudy(handler_.store, earlier->id, creation.call->response.mutable_study()); !s.ok())
    return s;
  creation.call->Finish(absl::OkStatus());
  return true;
}

template <typename Response>
void StudyService::WithFrameworks(const v1::StudySpec& spec, std::shared_ptr<UnaryCall<Response>> call,
                                  std::function<void(FrameworkStates)> then) {
  std::vector<std::string> engines = FrameworkEngines(spec);
  if (engines.empty()) return then({});
  ContinueOn(handler_.pools.files, call,
             [this, engines = std::move(engines), then = std::move(then)](const auto& asking) {
               frameworks_.Ask(engines, [asking, then](absl::StatusOr<FrameworkStates> states) {
                 if (!states.ok()) return asking->Finish(states.status());
                 then(*std::move(states));
               });
               return absl::OkStatus();
             });
}

template <typename Response>
void StudyService::AfterDatasets(Datasets datasets, std::shared_ptr<UnaryCall<Response>> call,
                                 std::function<void()> then) {
  if (datasets.empty()) return then();
  const std::string subject = "data set " + datasets.begin()->second;
  ContinueOn(
      handler_.pools.files, call,
      [datasets = std::move(datasets), then = std::move(then)](const auto&) {
        absl::Status checked = CheckDatasets(datasets);
        if (checked.ok()) then();
        return checked;
      },
      subject);
}

void StudyService::AskAndCreate(std::shared_ptr<const Creation> creation) {
  WithFrameworks(creation->request.spec(), creation->call, [this, creation](FrameworkStates engines) {
    ContinueOn(
        handler_.pools.heavy, creation->call,
        [this, creation, engines = std::move(engines)](const auto&) { return Create(*creation, engines); });
  });
}

absl::Status StudyService::Create(const Creation& creation, const FrameworkStates& engines) {
  const std::shared_ptr<CreateCall>& call = creation.call;
  const v1::CreateStudyRequest& request = creation.request;
  absl::StatusOr<ExpandedStudy> expanded =
      CheckStudy(request.spec(), scheduler_, engines, [&call] { return call->over(); });
  if (!expanded.ok()) return expanded.status();
  Datasets datasets = DatasetsToCheck(*expanded, scheduler_);
  auto study = std::make_shared<NewStudy>(
      MakeNewStudy(request.spec(), *std::move(expanded), creation.owner, request.request_id()));
  db::StudyRow& row = study->state->row;
  row.runs = static_cast<int64_t>(study->state->runs.size());
  row.created = absl::ToUnixMicros(absl::Now());
  // The response is made from the row to be stored: reading it back is not necessary.
  v1::Study& made = *call->response.mutable_study();
  made = ToStudy(row, {0, row.runs}, false);
  *made.mutable_spec() = request.spec();
  const bool validate_only = request.validate_only();
  if (validate_only) {
    made.clear_name();
    made.clear_create_time();
  }
  AfterDatasets(std::move(datasets), call, [this, call, study, validate_only] {
    if (validate_only) return call->Finish(absl::OkStatus());
    if (call->over()) return;
    coordinator_.Submit(std::move(*study), [call](absl::StatusOr<int64_t> id) {
      if (id.ok()) call->response.mutable_study()->set_name(StudyName(*id));
      call->Finish(id.status());
    });
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* StudyService::PlanStudy(grpc::CallbackServerContext* context,
                                                  const v1::PlanStudyRequest* request,
                                                  v1::PlanStudyResponse* response) {
  if (auto s = handler_.access.CheckClient(*context); !s.ok()) return Answer(context, s);
  auto call = UnaryCall<v1::PlanStudyResponse>::Start(context, response, handler_.call_limit);
  auto spec = std::make_shared<const v1::StudySpec>(request->spec());
  WithFrameworks(*spec, call, [this, call, spec](FrameworkStates engines) {
    ContinueOn(handler_.pools.heavy, call,
               [this, spec, engines = std::move(engines)](const auto& planned) -> absl::Status {
                 const absl::StatusOr<ExpandedStudy> study =
                     CheckStudy(*spec, scheduler_, engines, [&planned] { return planned->over(); });
                 if (!study.ok()) return study.status();
                 planned->response = PlanOf(*study, scheduler_);
                 AfterDatasets(DatasetsToCheck(*study, scheduler_), planned,
                               [planned] { planned->Finish(absl::OkStatus()); });
                 return absl::OkStatus();
               });
  });
  return call->reactor();
}

grpc::ServerUnaryReactor* StudyService::GetStudy(grpc::CallbackServerContext* context,
                                                 const v1::GetStudyRequest* request,
                                                 v1::GetStudyResponse* response) {
  return AnswerOn(
      handler_.pools.reads, handler_, context, response, [this, name = request->name()](auto& call) {
        const auto row = FindStudy(handler_.store, name);
        return row.ok() ? ReadStudy(handler_.store, row->id, call.response.mutable_study()) : row.status();
      });
}

grpc::ServerUnaryReactor* StudyService::ListStudies(grpc::CallbackServerContext* context,
                                                    const v1::ListStudiesRequest* request,
                                                    v1::ListStudiesResponse* response) {
  return AnswerOn(
      handler_.pools.reads, handler_, context, response,
      [this, request = *request](auto& call) -> absl::Status {
        int64_t before = 0;
        if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &before))
          return InvalidFields({{"page_token", "page_token is no next_page_token of ListStudies"}});
        const int size = request.page_size() <= 0 ? 100 : std::min(request.page_size(), 1000);
        const auto rows = handler_.store.ListStudies(before, size);
        if (!rows.ok()) return rows.status();
        std::vector<int64_t> ids;
        for (const db::StudyRow& row : *rows) ids.push_back(row.id);
        const auto counts = handler_.store.CountRuns(ids);
        if (!counts.ok()) return counts.status();
        for (size_t i = 0; i < rows->size(); ++i)
          *call.response.add_studies() = ToStudy((*rows)[i], (*counts)[i], false);
        if (static_cast<int>(rows->size()) == size)
          call.response.set_next_page_token(absl::StrCat(rows->back().id));
        return absl::OkStatus();
      });
}

grpc::ServerWriteReactor<v1::WatchStudyResponse>* StudyService::WatchStudy(
    grpc::CallbackServerContext* context, const v1::WatchStudyRequest* request) {
  using Failed = GeneratedStream<v1::WatchStudyResponse>;
  if (auto s = handler_.access.CheckClient(*context); !s.ok()) return Failed::Fail(s);
  const std::shared_ptr<WatchStream> stream = watches_.Open(handler_.access.PeerOf(*context));
  handler_.pools.reads.Run([this, stream, name = request->name()](absl::Status status) {
    if (stream->over()) return;
    if (!status.ok()) return stream->Fail(status);
    const absl::Status joined = WithinMemory([&]() -> absl::Status {
      const auto row = FindStudy(handler_.store, name);
      if (!row.ok()) return row.status();
      v1::StudySpec spec;
      if (auto s = FromJson(row->spec, &spec); !s.ok()) return s;
      stream->SetSpec(std::move(spec));
      watches_.Join(row->id, stream);
      return absl::OkStatus();
    });
    if (!joined.ok()) stream->Fail(joined);
  });
  return stream.get();
}

grpc::ServerUnaryReactor* StudyService::CancelStudy(grpc::CallbackServerContext* context,
                                                    const v1::CancelStudyRequest* request,
                                                    v1::CancelStudyResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    const auto row = FindStudy(handler_.store, name);
    if (!row.ok()) return row.status();
    coordinator_.CancelStudy(row->id, [this, call, id = row->id](const absl::Status& s) {
      if (!s.ok()) return call->Finish(s);
      FinishOn(handler_.pools.reads, call, [this, id](auto& cancelled) {
        return ReadStudy(handler_.store, id, cancelled.response.mutable_study());
      });
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* StudyService::RetryStudy(grpc::CallbackServerContext* context,
                                                   const v1::RetryStudyRequest* request,
                                                   v1::RetryStudyResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    const auto row = FindStudy(handler_.store, name);
    if (!row.ok()) return row.status();
    RetryRuns(coordinator_, handler_, row->id, 0, call, [this, id = row->id](auto& retried) {
      return ReadStudy(handler_.store, id, retried.response.mutable_study());
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* StudyService::ResumeStudy(grpc::CallbackServerContext* context,
                                                    const v1::ResumeStudyRequest* request,
                                                    v1::ResumeStudyResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    const auto row = FindStudy(handler_.store, name);
    if (!row.ok()) return row.status();
    coordinator_.ResumeStudy(row->id, [this, call, id = row->id](const absl::Status& s) {
      if (!s.ok()) return call->Finish(s);
      FinishOn(handler_.pools.reads, call, [this, id](auto& resumed) {
        return ReadStudy(handler_.store, id, resumed.response.mutable_study());
      });
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* StudyService::DeleteStudy(grpc::CallbackServerContext* context,
                                                    const v1::DeleteStudyRequest* request,
                                                    v1::DeleteStudyResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    if (name == "studies/last" || name == "last") {
      return InvalidFields(
          {{"name",
            "deleting 'last' is refused because it may have changed since you looked; give the "
            "study's number"}});
    }
    const auto row = FindStudy(handler_.store, name);
    if (!row.ok()) return row.status();
    coordinator_.DeleteStudy(row->id, [call](const absl::Status& s) { call->Finish(s); });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* StudyService::ExplainStudy(grpc::CallbackServerContext* context,
                                                     const v1::ExplainStudyRequest* request,
                                                     v1::ExplainStudyResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    const auto row = FindStudy(handler_.store, name);
    if (!row.ok()) return row.status();
    coordinator_.Read([this, call, id = row->id](const State* state) {
      if (call->over()) return;
      if (state == nullptr) return call->Finish(NoState());
      v1::ExplainStudyResponse& answer = call->response;
      if (const LiveStudy* study = state->study(id)) {
        *answer.mutable_study() = ToStudy(study->row, {study->counts.begin(), study->counts.end()}, false);
        for (v1::Reason& reason : server::ExplainStudy(*state, *study, absl::ToUnixMicros(absl::Now())))
          *answer.add_reasons() = std::move(reason);
        return call->Finish(absl::OkStatus());
      }
      // The study is final: its result is in the database.
      FinishOn(handler_.pools.reads, call, [this, id](auto& explained) {
        const auto last = handler_.store.GetStudy(id);
        const auto counts = handler_.store.CountRuns({id});
        if (!last.ok() || !counts.ok()) return last.ok() ? counts.status() : last.status();
        *explained.response.mutable_study() = ToStudy(*last, counts->front(), false);
        *explained.response.add_reasons() = FinalReason(*last, counts->front());
        return absl::OkStatus();
      });
    });
    return absl::OkStatus();
  });
}

}  // namespace scalelab::server
