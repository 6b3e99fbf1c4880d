#include "server/services/study_service.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "db/archive/archive.h"
#include "db/outbox/outbox.h"
#include "db/retention/retention.h"
#include "db/study_files/study_files.h"
#include "proto/status.h"
#include "proto/utf8.h"
#include "server/core/convert.h"
#include "server/core/explain.h"
#include "server/identity/permissions.h"
#include "server/notify/settings.h"
#include "server/readers/filesystem_of.h"
#include "server/services/lookup.h"
#include "server/services/retry.h"

namespace scalelab::server {
namespace {

constexpr size_t kLongestOwner = 64;
constexpr size_t kLongestRequestId = 100;
constexpr int kMaxPriority = 1000;
constexpr size_t kLongestStudyFile = 256 << 10;

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || absl::StrContains("._@+-", c); }

// Returns a violation if `value` has more than `longest` bytes, or characters that are not safe in
// logs and terminals.
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

// Returns whether the text of a study file may be stored and returned. It must be UTF-8 and not too long, and
// have no control characters other than tabs and line ends, because users print it on their terminals.
bool IsKeptStudyFile(const std::string& text) {
  if (text.size() > kLongestStudyFile) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7f) return false;
    // U+0080 to U+009F have two bytes: 0xC2 and their number.
    if (c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) return false;
  }
  return true;
}

absl::Status CheckNames(const v1::CreateStudyRequest& request) {
  std::vector<FieldViolation> violations;
  if (auto v = CheckName("owner", request.owner(), kLongestOwner)) violations.push_back(*std::move(v));
  if (auto v = CheckName("request_id", request.request_id(), kLongestRequestId))
    violations.push_back(*std::move(v));
  return violations.empty() ? absl::OkStatus() : InvalidFields(std::move(violations));
}

}  // namespace

// Adds reasons about a final study: the data that retention has removed, and notifications that
// were not sent.
static absl::Status AddKeepingReasons(db::Store& store, const db::StudyRow& study,
                                      v1::ExplainStudyResponse* response) {
  const auto add = [&](std::string message, db::Micros since) -> v1::Reason& {
    v1::Reason& reason = *response->add_reasons();
    reason.set_kind(v1::Reason::FINAL);
    reason.set_message(std::move(message));
    reason.set_subject(StudyName(study.id));
    SetTime(since, reason.mutable_since_time());
    return reason;
  };
  const auto removed = db::GetRemoved(store, study.id);
  if (!removed.ok()) return removed.status();
  for (const auto& [what, when] : {std::pair("points", removed->points), std::pair("logs", removed->logs),
                                   std::pair("attempt directories", removed->directories)}) {
    if (when > 0)
      add(absl::StrCat("its ", what, " were removed by retention; the results of its runs remain"), when);
  }
  const auto notices = db::ListNotices(store, study.id);
  if (!notices.ok()) return notices.status();
  for (const db::NoticeRow& notice : *notices) {
    if (notice.error.empty() || notice.state == db::NoticeRow::State::kSent) continue;
    const bool given_up = notice.state == db::NoticeRow::State::kGivenUp;
    v1::Reason& reason =
        add(absl::StrCat("a notification (", notice.channel, ") ",
                         given_up ? "could not be sent: " : "is not sent yet: ", ValidUtf8(notice.error)),
            notice.created);
    if (!given_up) SetTime(notice.due, reason.mutable_next_try_time());
  }
  return absl::OkStatus();
}

absl::Status ReadStudy(db::Store& store, int64_t study_id, v1::Study* study) {
  const auto row = store.GetStudy(study_id);
  if (!row.ok()) return row.status();
  const auto counts = store.CountRuns({study_id});
  if (!counts.ok()) return counts.status();
  *study = ToStudy(*row, counts->front(), true);
  const auto origin = db::GetOrigin(store, study_id);
  if (!origin.ok()) return origin.status();
  if (!origin->has_value()) return absl::OkStatus();
  v1::StudyOrigin& from = *study->mutable_origin();
  from.set_server((*origin)->server);
  from.set_study((*origin)->study);
  from.set_sha256((*origin)->sha256);
  from.set_imported_by((*origin)->imported_by);
  SetTime((*origin)->imported, from.mutable_import_time());
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* StudyService::CreateStudy(grpc::CallbackServerContext* context,
                                                    const v1::CreateStudyRequest* request,
                                                    v1::CreateStudyResponse* response) {
  const auto begin = [&](const std::shared_ptr<CreateCall>& call) {
    if (auto s = CheckNames(*request); !s.ok()) return call->Finish(s);
    if (auto s = MaySubmit(call->caller(), request->owner(), request->spec().priority()); !s.ok())
      return call->Finish(s);
    const std::string& owner = request->owner().empty() ? call->caller().user : request->owner();
    if (owner != call->caller().user) call->client().SetDetail(absl::StrCat("for ", owner));
    auto creation = std::make_shared<const Creation>(Creation{*request, owner, call});
    if (request->request_id().empty() || request->validate_only()) return AskAndCreate(std::move(creation));
    // Look for an earlier call with the same request id before checking the study. The study may
    // have become invalid.
    ContinueOn(handler_.pools.reads, call, [this, creation](const auto&) {
      const absl::StatusOr<bool> answered = AnswerEarlier(*creation);
      if (answered.ok() && !*answered) AskAndCreate(creation);
      return answered.status();
    });
  };
  return BeginCall(handler_, context, response, begin, /*changes=*/!request->validate_only());
}

absl::StatusOr<bool> StudyService::AnswerEarlier(const Creation& creation) {
  const std::string& id = creation.request.request_id();
  const auto earlier = handler_.store.FindRequest(creation.owner, id);
  if (absl::IsNotFound(earlier.status())) return false;
  if (!earlier.ok()) return earlier.status();
  if (earlier->spec != ToJson(creation.request.spec())) return RequestIdReused(id, earlier->id);
  if (auto s = ReadStudy(handler_.store, earlier->id, creation.call->response.mutable_study()); !s.ok())
    return s;
  creation.call->client().SetTarget(StudyName(earlier->id));
  creation.call->Finish(absl::OkStatus());
  return true;
}

template <typename Response>
void StudyService::WithFrameworks(const v1::StudySpec& spec, std::shared_ptr<UnaryCall<Response>> call,
                                  std::function<void(FrameworkStates)> then) {
  std::vector<std::string> engines = FrameworkEngines(spec);
  if (engines.empty()) return then({});
  Subject subject{"", FilesystemOf(frameworks_.PathFor(engines))};
  ContinueOn(
      handler_.pools.files, call,
      [this, engines = std::move(engines), then = std::move(then)](const auto& asking) {
        frameworks_.Ask(engines, [asking, then](absl::StatusOr<FrameworkStates> states) {
          if (!states.ok()) return asking->Finish(states.status());
          then(*std::move(states));
        });
        return absl::OkStatus();
      },
      std::move(subject));
}

template <typename Response>
void StudyService::AfterDatasets(Datasets datasets, std::shared_ptr<UnaryCall<Response>> call,
                                 std::function<void()> then) {
  if (datasets.empty()) return then();
  const std::string& directory = datasets.begin()->second;
  Subject subject{"data set " + directory, FilesystemOf(directory)};
  ContinueOn(
      handler_.pools.files, call,
      [datasets = std::move(datasets), then = std::move(then)](const auto&) {
        absl::Status checked = CheckDatasets(datasets);
        if (checked.ok()) then();
        return checked;
      },
      std::move(subject));
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
  if (auto s = CheckNotify(request.spec(), notify_commands_); !s.ok()) return s;
  Datasets datasets = DatasetsToCheck(*expanded, scheduler_);
  auto study = std::make_shared<NewStudy>(
      MakeNewStudy(request.spec(), *std::move(expanded), creation.owner, request.request_id()));
  if (IsKeptStudyFile(request.study_file())) study->study_file = request.study_file();
  db::StudyRow& row = study->state->row;
  row.runs = static_cast<int64_t>(study->state->runs.size());
  row.created = absl::ToUnixMicros(absl::Now());
  // Make the response from the row that is about to be stored, instead of reading it back.
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
      if (id.ok()) {
        call->response.mutable_study()->set_name(StudyName(*id));
        call->client().SetTarget(StudyName(*id));
      }
      call->Finish(id.status());
    });
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* StudyService::PlanStudy(grpc::CallbackServerContext* context,
                                                  const v1::PlanStudyRequest* request,
                                                  v1::PlanStudyResponse* response) {
  return BeginCall(handler_, context, response, [&](const auto& call) {
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
  });
}

grpc::ServerUnaryReactor* StudyService::GetStudy(grpc::CallbackServerContext* context,
                                                 const v1::GetStudyRequest* request,
                                                 v1::GetStudyResponse* response) {
  return AnswerOn(
      handler_.pools.reads, handler_, context, response,
      [this, name = request->name(), with_file = request->with_study_file()](auto& call) -> absl::Status {
        const auto row = FindStudy(handler_.store, call.client(), name);
        if (!row.ok()) return row.status();
        if (auto s = ReadStudy(handler_.store, row->id, call.response.mutable_study()); !s.ok()) return s;
        if (!with_file) return absl::OkStatus();
        auto text = db::GetStudyFile(handler_.store, row->id);
        if (!text.ok()) return text.status();
        // Check the text again, because it may come from an archive that another service wrote.
        if (!text->empty() && ValidUtf8(*text) == *text && IsKeptStudyFile(*text))
          call.response.set_study_file(*std::move(text));
        return absl::OkStatus();
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
        const auto rows = handler_.store.ListStudies(before, size, ViewerOf(call.caller()));
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
  const auto client = BeginStream<v1::WatchStudyResponse>(handler_, *context);
  if (!client.ok()) return Failed::Fail(client.status());
  const std::shared_ptr<WatchStream> stream = watches_.Open(handler_.access.PeerOf(*context));
  const auto join = [this, stream, client = *client, name = request->name()](const absl::Status& status) {
    if (stream->over()) return;
    if (!status.ok()) return stream->Fail(status);
    const absl::Status joined = WithinMemory([&]() -> absl::Status {
      const auto row = FindStudy(handler_.store, *client, name);
      if (!row.ok()) return row.status();
      v1::StudySpec spec;
      if (auto s = FromJson(row->spec, &spec); !s.ok()) return s;
      stream->SetSpec(std::move(spec));
      watches_.Join(row->id, stream);
      return absl::OkStatus();
    });
    if (joined.ok()) return;
    handler_.access.Audit(*client, joined);
    stream->Fail(joined);
  };
  handler_.pools.reads.Run(join, {}, (*client)->pool_client());
  return stream.get();
}

template <typename Response, typename Change, typename Check>
grpc::ServerUnaryReactor* StudyService::ChangeStudy(grpc::CallbackServerContext* context,
                                                    const std::string& name, Response* response,
                                                    Change change, Check check) {
  return BeginWithRead(handler_, context, response, [this, name, change, check](const auto& call) {
    const auto row = FindStudy(handler_.store, call->client(), name);
    if (!row.ok()) return row.status();
    if (absl::Status s = check(call->caller(), *row); !s.ok()) return s;
    change(row->id, [this, call, id = row->id](const absl::Status& s) {
      if (!s.ok()) return call->Finish(s);
      FinishOn(handler_.pools.reads, call, [this, id](auto& changed) {
        return ReadStudy(handler_.store, id, changed.response.mutable_study());
      });
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* StudyService::CancelStudy(grpc::CallbackServerContext* context,
                                                    const v1::CancelStudyRequest* request,
                                                    v1::CancelStudyResponse* response) {
  return ChangeStudy(context, request->name(), response,
                     [this](int64_t id, auto done) { coordinator_.CancelStudy(id, std::move(done)); });
}

grpc::ServerUnaryReactor* StudyService::RetryStudy(grpc::CallbackServerContext* context,
                                                   const v1::RetryStudyRequest* request,
                                                   v1::RetryStudyResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    const auto row = FindStudyToControl(handler_.store, call->client(), name);
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
  return ChangeStudy(context, request->name(), response,
                     [this](int64_t id, auto done) { coordinator_.ResumeStudy(id, std::move(done)); });
}

grpc::ServerUnaryReactor* StudyService::HoldStudy(grpc::CallbackServerContext* context,
                                                  const v1::HoldStudyRequest* request,
                                                  v1::HoldStudyResponse* response) {
  return ChangeStudy(context, request->name(), response,
                     [this](int64_t id, auto done) { coordinator_.HoldStudy(id, std::move(done)); });
}

grpc::ServerUnaryReactor* StudyService::ReleaseStudy(grpc::CallbackServerContext* context,
                                                     const v1::ReleaseStudyRequest* request,
                                                     v1::ReleaseStudyResponse* response) {
  return ChangeStudy(context, request->name(), response,
                     [this](int64_t id, auto done) { coordinator_.ReleaseStudy(id, std::move(done)); });
}

grpc::ServerUnaryReactor* StudyService::SetStudyPriority(grpc::CallbackServerContext* context,
                                                         const v1::SetStudyPriorityRequest* request,
                                                         v1::SetStudyPriorityResponse* response) {
  const auto check = [priority = request->priority()](const Identity& caller, const db::StudyRow& study) {
    if (priority < -kMaxPriority || priority > kMaxPriority) {
      return InvalidFields({{"priority", absl::StrCat("priority ", priority, " is not from -", kMaxPriority,
                                                      " to ", kMaxPriority)}});
    }
    return MaySetPriority(caller, study, priority);
  };
  const auto change = [this, priority = request->priority()](int64_t id, auto done) {
    coordinator_.SetPriority(id, priority, std::move(done));
  };
  return ChangeStudy(context, request->name(), response, change, check);
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
    const auto row = FindStudyToControl(handler_.store, call->client(), name);
    if (!row.ok()) return row.status();
    coordinator_.DeleteStudy(row->id, [call](const absl::Status& s) { call->Finish(s); });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* StudyService::ExplainStudy(grpc::CallbackServerContext* context,
                                                     const v1::ExplainStudyRequest* request,
                                                     v1::ExplainStudyResponse* response) {
  return BeginWithRead(handler_, context, response, [this, name = request->name()](const auto& call) {
    const auto row = FindStudy(handler_.store, call->client(), name);
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
      // The study is final, so read it from the database. A job of the study may still exist.
      std::vector<v1::Reason> left = ExplainJobsLeft(*state, id, absl::ToUnixMicros(absl::Now()));
      FinishOn(handler_.pools.reads, call, [this, id, left = std::move(left)](auto& explained) {
        const auto last = handler_.store.GetStudy(id);
        const auto counts = handler_.store.CountRuns({id});
        if (!last.ok() || !counts.ok()) return last.ok() ? counts.status() : last.status();
        *explained.response.mutable_study() = ToStudy(*last, counts->front(), false);
        *explained.response.add_reasons() = FinalReason(*last, counts->front());
        for (const v1::Reason& reason : left) *explained.response.add_reasons() = reason;
        return AddKeepingReasons(handler_.store, *last, &explained.response);
      });
    });
    return absl::OkStatus();
  });
}

}  // namespace scalelab::server
