// A fake server for tests of the client: it returns the answers that a test has set, over real gRPC.
//
// Set the data members before the calls. Other members record the client's requests. The services keep
// no other state.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "proto/status.h"
#include "scalelab/v1/admin.grpc.pb.h"
#include "scalelab/v1/analysis.grpc.pb.h"
#include "scalelab/v1/archive.grpc.pb.h"
#include "scalelab/v1/auth.grpc.pb.h"
#include "scalelab/v1/cluster.grpc.pb.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "scalelab/v1/run.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "server/curves/measured_series.h"

namespace scalelab::fakes {

namespace v1 = scalelab::v1;

class FakeServices {
 public:
  // The answers of the services.
  std::vector<v1::Study> studies;  // newest first
  std::string study_file;          // of all studies; empty: not stored
  std::vector<v1::Run> runs;
  v1::PlanStudyResponse plan;
  absl::Status plan_error;  // if set, PlanStudy fails with it
  v1::GetCurveResponse curve;
  v1::CompareCellsResponse comparison;
  v1::AdviseRanksResponse advice;
  v1::GetCurveRequest curve_asked;
  v1::CompareCellsRequest comparison_asked;
  v1::AdviseRanksRequest advice_asked;
  v1::GetClusterResponse cluster;
  v1::PruneResponse pruned;
  std::vector<std::string> archive;  // the pieces of an archive
  v1::ListFrameworksResponse frameworks;
  std::chrono::seconds frameworks_limit{};  // deadline of the last ListFrameworks
  v1::ListUsageResponse usage;
  v1::ListQueueResponse queue;
  std::vector<v1::Reason> reasons;  // for every study and run
  v1::Identity identity;
  std::vector<v1::Token> tokens;
  std::vector<v1::ListAuditEntriesResponse::Entry> audit;
  // The messages that each WatchStudy sends. Then the call ends. If `watch_stays_open` is set, it ends when the
  // client cancels it.
  std::vector<v1::WatchStudyResponse> looks;
  bool watch_stays_open = false;
  std::vector<v1::ReadPointsResponse> points;
  std::vector<v1::ReadRunLogResponse> log;
  std::map<int, std::vector<v1::ReadRunLogResponse>> log_of;  // by attempt; the others have `log`
  std::function<void()> on_get_run;                           // called before each answer of GetRun
  int page_size = 2;                                          // of lists, regardless of the request
  std::string token;                                          // if set, callers must present it
  v1::AuthService::Service* logins = nullptr;                 // if set, issues session tokens
  absl::Status error;                                         // if set, every call fails with it
  int lost_answers = 0;    // number of CreateStudy calls that are carried out but answered UNAVAILABLE
  int broken_watches = 0;  // number of WatchStudy calls that break after their first message

  // The recorded requests.
  std::mutex mutex;  // guards points_asked
  std::vector<v1::CreateStudyRequest> created;
  std::vector<v1::ReadPointsRequest> points_asked;
  std::vector<v1::ReadRunLogRequest> logs_asked;
  std::atomic<int> pieces_sent = 0;  // of logs and points, to clients that have not cancelled
  std::vector<v1::ListRunsRequest> runs_asked;
  std::vector<v1::CreateTokenRequest> tokens_created;
  std::vector<v1::ListAuditEntriesRequest> audit_asked;
  std::vector<std::string> watched, cancelled, deleted, held, released;
  std::vector<v1::SetStudyPriorityRequest> priorities;
  std::vector<v1::SetDrainRequest> drains;
  std::vector<v1::PruneRequest> prunes;
  std::string restored;  // bytes
  v1::StudyOrigin restored_from;

  // Serves at `address` ("unix:PATH" or "127.0.0.1:0") until destroyed; `port()` returns the chosen port.
  void Start(const std::string& address, const std::shared_ptr<grpc::ServerCredentials>& credentials =
                                             grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, credentials, &port_);
    builder.RegisterService(&study_service_);
    builder.RegisterService(&run_service_);
    builder.RegisterService(&result_service_);
    builder.RegisterService(&auth_service_);
    builder.RegisterService(&admin_service_);
    builder.RegisterService(&analysis_service_);
    builder.RegisterService(&archive_service_);
    builder.RegisterService(&cluster_service_);
    server_ = builder.BuildAndStart();
  }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  ~FakeServices() { Stop(); }
  int port() const { return port_; }

 private:
  grpc::Status CheckToken(const grpc::ServerContext& context) const {
    const auto it = context.client_metadata().find("authorization");
    if (!token.empty() && (it == context.client_metadata().end() ||
                           std::string(it->second.data(), it->second.size()) != "Bearer " + token)) {
      return ToGrpc(MakeError(absl::StatusCode::kUnauthenticated, "", "no valid token"));
    }
    return grpc::Status::OK;
  }
  grpc::Status Check(const grpc::ServerContext& context) const {
    const auto known = CheckToken(context);
    return known.ok() ? ToGrpc(error) : known;
  }

  // "studies/last", "studies/7" or "studies/{display name}".
  const v1::Study* FindStudy(const std::string& name) const {
    if (name == "studies/last" && !studies.empty()) return &studies.front();
    for (const auto& study : studies) {
      if (study.name() == name || "studies/" + study.display_name() == name) return &study;
    }
    return nullptr;
  }
  const v1::Run* FindRun(const std::string& name) const {
    for (const auto& run : runs) {
      const bool tail =
          run.name().size() > name.size() &&
          run.name().compare(run.name().size() - name.size() - 1, std::string::npos, "/" + name) == 0;
      if (run.name() == name || tail) return &run;
    }
    return nullptr;
  }
  static grpc::Status NotFound(const std::string& name) {
    return ToGrpc(MakeError(absl::StatusCode::kNotFound, "NOT_FOUND", "there is no " + name));
  }
  template <class Request, class Add>
  std::string Page(const Request& request, size_t total, const Add& add) const {
    size_t at = request.page_token().empty() ? 0 : std::stoul(request.page_token());
    const size_t end = std::min(total, at + static_cast<size_t>(page_size));
    for (; at < end; ++at) add(at);
    return end < total ? std::to_string(end) : "";
  }

  struct Studies : v1::StudyService::Service {
    explicit Studies(FakeServices& f) : f(f) {}
    grpc::Status CreateStudy(grpc::ServerContext* c, const v1::CreateStudyRequest* request,
                             v1::CreateStudyResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.created.push_back(*request);
      if (f.lost_answers-- > 0) return {grpc::StatusCode::UNAVAILABLE, "the connection broke"};
      auto* study = response->mutable_study();
      study->set_name("studies/7");
      study->set_display_name(request->spec().study());
      study->set_state(v1::Study::QUEUED);
      study->mutable_counts()->set_queued(6);
      return grpc::Status::OK;
    }
    grpc::Status PlanStudy(grpc::ServerContext* c, const v1::PlanStudyRequest*,
                           v1::PlanStudyResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      if (!f.plan_error.ok()) return ToGrpc(f.plan_error);
      *response = f.plan;
      return grpc::Status::OK;
    }
    grpc::Status GetStudy(grpc::ServerContext* c, const v1::GetStudyRequest* request,
                          v1::GetStudyResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      const v1::Study* study = f.FindStudy(request->name());
      if (study == nullptr) return NotFound(request->name());
      *response->mutable_study() = *study;
      if (request->with_study_file() && !f.study_file.empty()) response->set_study_file(f.study_file);
      return grpc::Status::OK;
    }
    grpc::Status ListStudies(grpc::ServerContext* c, const v1::ListStudiesRequest* request,
                             v1::ListStudiesResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      response->set_next_page_token(
          f.Page(*request, f.studies.size(), [&](size_t i) { *response->add_studies() = f.studies[i]; }));
      return grpc::Status::OK;
    }
    grpc::Status WatchStudy(grpc::ServerContext* c, const v1::WatchStudyRequest* request,
                            grpc::ServerWriter<v1::WatchStudyResponse>* writer) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.watched.push_back(request->name());
      for (const auto& look : f.looks) {
        writer->Write(look);
        if (f.broken_watches-- > 0) return {grpc::StatusCode::UNAVAILABLE, "the connection broke"};
      }
      while (f.watch_stays_open && !c->IsCancelled())
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return grpc::Status::OK;
    }
    grpc::Status CancelStudy(grpc::ServerContext* c, const v1::CancelStudyRequest* request,
                             v1::CancelStudyResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.cancelled.push_back(request->name());
      *response->mutable_study() = *f.FindStudy(request->name());
      response->mutable_study()->set_state(v1::Study::CANCELLED);
      return grpc::Status::OK;
    }
    grpc::Status HoldStudy(grpc::ServerContext* c, const v1::HoldStudyRequest* request,
                           v1::HoldStudyResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.held.push_back(request->name());
      *response->mutable_study() = *f.FindStudy(request->name());
      return grpc::Status::OK;
    }
    grpc::Status ReleaseStudy(grpc::ServerContext* c, const v1::ReleaseStudyRequest* request,
                              v1::ReleaseStudyResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.released.push_back(request->name());
      *response->mutable_study() = *f.FindStudy(request->name());
      return grpc::Status::OK;
    }
    grpc::Status SetStudyPriority(grpc::ServerContext* c, const v1::SetStudyPriorityRequest* request,
                                  v1::SetStudyPriorityResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.priorities.push_back(*request);
      *response->mutable_study() = *f.FindStudy(request->name());
      return grpc::Status::OK;
    }
    grpc::Status DeleteStudy(grpc::ServerContext* c, const v1::DeleteStudyRequest* request,
                             v1::DeleteStudyResponse*) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      if (const auto state = f.FindStudy(request->name())->state(); state == v1::Study::RUNNING) {
        return ToGrpc(MakeError(absl::StatusCode::kFailedPrecondition, "STUDY_NOT_FINAL",
                                request->name() + " is not over: cancel it first"));
      }
      f.deleted.push_back(request->name());
      return grpc::Status::OK;
    }
    grpc::Status ExplainStudy(grpc::ServerContext* c, const v1::ExplainStudyRequest* request,
                              v1::ExplainStudyResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      const v1::Study* study = f.FindStudy(request->name());
      if (study == nullptr) return NotFound(request->name());
      *response->mutable_study() = *study;
      response->mutable_reasons()->Assign(f.reasons.begin(), f.reasons.end());
      return grpc::Status::OK;
    }
    FakeServices& f;
  };

  struct Runs : v1::RunService::Service {
    explicit Runs(FakeServices& f) : f(f) {}
    grpc::Status GetRun(grpc::ServerContext* c, const v1::GetRunRequest* request,
                        v1::GetRunResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      if (f.on_get_run) f.on_get_run();
      const v1::Run* run = f.FindRun(request->name());
      if (run == nullptr) return NotFound(request->name());
      *response->mutable_run() = *run;
      return grpc::Status::OK;
    }
    grpc::Status ListRuns(grpc::ServerContext* c, const v1::ListRunsRequest* request,
                          v1::ListRunsResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.runs_asked.push_back(*request);
      std::vector<v1::Run> some;
      for (const auto& run : f.runs) {
        if (request->state() == v1::Run::STATE_UNSPECIFIED || run.state() == request->state())
          some.push_back(run);
      }
      response->set_next_page_token(f.Page(*request, some.size(), [&](size_t i) {
        *response->add_runs() = some[i];
        response->mutable_runs(response->runs_size() - 1)->clear_attempts();
      }));
      return grpc::Status::OK;
    }
    grpc::Status CancelRun(grpc::ServerContext* c, const v1::CancelRunRequest* request,
                           v1::CancelRunResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      const v1::Run* run = f.FindRun(request->name());
      if (run == nullptr) return NotFound(request->name());
      f.cancelled.push_back(request->name());
      *response->mutable_run() = *run;
      response->mutable_run()->set_state(v1::Run::CANCELLED);
      return grpc::Status::OK;
    }
    grpc::Status ReadRunLog(grpc::ServerContext* c, const v1::ReadRunLogRequest* request,
                            grpc::ServerWriter<v1::ReadRunLogResponse>* writer) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.logs_asked.push_back(*request);
      const auto own = f.log_of.find(request->attempt());
      std::vector<v1::ReadRunLogResponse> pieces;
      int64_t size = 0;
      for (const v1::ReadRunLogResponse& piece : own == f.log_of.end() ? f.log : own->second) {
        const bool other =
            piece.stream() != 0 && request->stream() != 0 && piece.stream() != request->stream();
        if (other) continue;
        pieces.push_back(piece);
        pieces.back().set_offset(size);
        size += static_cast<int64_t>(piece.data().size());
      }
      const int64_t begin =
          request->offset() < 0 ? std::max<int64_t>(0, size + request->offset()) : request->offset();
      if (begin > size) {
        return ToGrpc(
            MakeError(absl::StatusCode::kOutOfRange, "OFFSET_BEYOND_END", "the output has fewer bytes"));
      }
      for (v1::ReadRunLogResponse& piece : pieces) {
        const auto skip =
            std::clamp<int64_t>(begin - piece.offset(), 0, static_cast<int64_t>(piece.data().size()));
        piece.mutable_data()->erase(0, static_cast<size_t>(skip));
        piece.set_offset(piece.offset() + skip);
        if (!piece.data().empty() || begin == 0) f.pieces_sent += writer->Write(piece) ? 1 : 0;
      }
      return grpc::Status::OK;
    }
    grpc::Status ExplainRun(grpc::ServerContext* c, const v1::ExplainRunRequest* request,
                            v1::ExplainRunResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      const v1::Run* run = f.FindRun(request->name());
      if (run == nullptr) return NotFound(request->name());
      *response->mutable_run() = *run;
      response->mutable_run()->clear_attempts();
      response->mutable_reasons()->Assign(f.reasons.begin(), f.reasons.end());
      return grpc::Status::OK;
    }
    FakeServices& f;
  };

  struct Results : v1::ResultService::Service {
    explicit Results(FakeServices& f) : f(f) {}
    grpc::Status GetCurve(grpc::ServerContext* c, const v1::GetCurveRequest* request,
                          v1::GetCurveResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.curve_asked = *request;
      *response = f.curve;
      return grpc::Status::OK;
    }
    grpc::Status ReadPoints(grpc::ServerContext* c, const v1::ReadPointsRequest* request,
                            grpc::ServerWriter<v1::ReadPointsResponse>* writer) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      {
        const std::lock_guard lock(f.mutex);  // clients read several runs at a time
        f.points_asked.push_back(*request);
      }
      for (const auto& part : f.points) f.pieces_sent += writer->Write(part) ? 1 : 0;
      return grpc::Status::OK;
    }
    FakeServices& f;
  };

  struct Analysis : v1::AnalysisService::Service {
    explicit Analysis(FakeServices& f) : f(f) {}
    grpc::Status CompareCells(grpc::ServerContext* c, const v1::CompareCellsRequest* request,
                              v1::CompareCellsResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.comparison_asked = *request;
      *response = f.comparison;
      if (response->measured().empty()) {
        for (int i = 0; i < response->studies_size(); ++i)
          server::AddMeasuredSeries(f.curve, *response->mutable_measured());
      }
      return grpc::Status::OK;
    }
    grpc::Status AdviseRanks(grpc::ServerContext* c, const v1::AdviseRanksRequest* request,
                             v1::AdviseRanksResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.advice_asked = *request;
      *response = f.advice;
      if (response->measured().empty()) server::AddMeasuredSeries(f.curve, *response->mutable_measured());
      return grpc::Status::OK;
    }
    FakeServices& f;
  };

  struct Cluster : v1::ClusterService::Service {
    explicit Cluster(FakeServices& f) : f(f) {}
    grpc::Status GetCluster(grpc::ServerContext* c, const v1::GetClusterRequest*,
                            v1::GetClusterResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      *response = f.cluster;
      return grpc::Status::OK;
    }
    grpc::Status ListFrameworks(grpc::ServerContext* c, const v1::ListFrameworksRequest*,
                                v1::ListFrameworksResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.frameworks_limit =
          std::chrono::ceil<std::chrono::seconds>(c->deadline() - std::chrono::system_clock::now());
      *response = f.frameworks;
      return grpc::Status::OK;
    }
    FakeServices& f;
  };

  struct Auth : v1::AuthService::Service {
    explicit Auth(FakeServices& f) : f(f) {}
    grpc::Status CreateChallenge(grpc::ServerContext* c, const v1::CreateChallengeRequest* request,
                                 v1::CreateChallengeResponse* response) override {
      return f.logins == nullptr ? Service::CreateChallenge(c, request, response)
                                 : f.logins->CreateChallenge(c, request, response);
    }
    grpc::Status CreateSession(grpc::ServerContext* c, const v1::CreateSessionRequest* request,
                               v1::CreateSessionResponse* response) override {
      return f.logins == nullptr ? Service::CreateSession(c, request, response)
                                 : f.logins->CreateSession(c, request, response);
    }
    grpc::Status GetIdentity(grpc::ServerContext* c, const v1::GetIdentityRequest*,
                             v1::GetIdentityResponse* response) override {
      *response->mutable_identity() = f.identity;
      return f.Check(*c);
    }
    grpc::Status CreateToken(grpc::ServerContext* c, const v1::CreateTokenRequest* request,
                             v1::CreateTokenResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.tokens_created.push_back(*request);
      *response->mutable_token() = f.tokens.front();
      response->set_secret("slt_secret");
      return grpc::Status::OK;
    }
    grpc::Status ListTokens(grpc::ServerContext* c, const v1::ListTokensRequest*,
                            v1::ListTokensResponse* response) override {
      for (const auto& t : f.tokens) *response->add_tokens() = t;
      return f.Check(*c);
    }
    grpc::Status RevokeToken(grpc::ServerContext* c, const v1::RevokeTokenRequest* request,
                             v1::RevokeTokenResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      for (const auto& t : f.tokens) {
        if (t.name() != request->name()) continue;
        *response->mutable_token() = t;
        response->mutable_token()->mutable_revoke_time()->set_seconds(1);
        return grpc::Status::OK;
      }
      return NotFound(request->name());
    }
    FakeServices& f;
  };

  struct Admin : v1::AdminService::Service {
    explicit Admin(FakeServices& f) : f(f) {}
    grpc::Status Prune(grpc::ServerContext* c, const v1::PruneRequest* request,
                       v1::PruneResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.prunes.push_back(*request);
      *response = f.pruned;
      return grpc::Status::OK;
    }
    grpc::Status ListUsage(grpc::ServerContext* c, const v1::ListUsageRequest*,
                           v1::ListUsageResponse* response) override {
      *response = f.usage;
      return f.Check(*c);
    }
    grpc::Status ListQueue(grpc::ServerContext* c, const v1::ListQueueRequest*,
                           v1::ListQueueResponse* response) override {
      *response = f.queue;
      return f.Check(*c);
    }
    grpc::Status SetDrain(grpc::ServerContext* c, const v1::SetDrainRequest* request,
                          v1::SetDrainResponse* response) override {
      f.drains.push_back(*request);
      response->set_live_attempts(3);
      return f.Check(*c);
    }
    grpc::Status ListAuditEntries(grpc::ServerContext* c, const v1::ListAuditEntriesRequest* request,
                                  v1::ListAuditEntriesResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      f.audit_asked.push_back(*request);
      response->set_next_page_token(
          f.Page(*request, f.audit.size(), [&](size_t i) { *response->add_entries() = f.audit[i]; }));
      return grpc::Status::OK;
    }
    FakeServices& f;
  };

  struct Archives : v1::ArchiveService::Service {
    explicit Archives(FakeServices& f) : f(f) {}
    grpc::Status ReadArchive(grpc::ServerContext* c, const v1::ReadArchiveRequest*,
                             grpc::ServerWriter<v1::ReadArchiveResponse>* writer) override {
      if (const auto s = f.CheckToken(*c); !s.ok()) return s;
      for (const std::string& piece : f.archive) {
        v1::ReadArchiveResponse response;
        response.set_data(piece);
        writer->Write(response);
      }
      return f.Check(*c);
    }
    grpc::Status RestoreArchive(grpc::ServerContext* c, grpc::ServerReader<v1::RestoreArchiveRequest>* reader,
                                v1::RestoreArchiveResponse* response) override {
      if (const auto s = f.Check(*c); !s.ok()) return s;
      v1::RestoreArchiveRequest request;
      while (reader->Read(&request)) {
        f.restored += request.data();
        if (request.has_origin()) f.restored_from = request.origin();
      }
      if (!f.studies.empty()) *response->mutable_study() = f.studies.front();
      return grpc::Status::OK;
    }
    FakeServices& f;
  };

  Studies study_service_{*this};
  Runs run_service_{*this};
  Results result_service_{*this};
  Analysis analysis_service_{*this};
  Cluster cluster_service_{*this};
  Auth auth_service_{*this};
  Admin admin_service_{*this};
  Archives archive_service_{*this};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace scalelab::fakes
