// Implements StudyService. The coordinator makes changes; reads use the database.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scalelab/v1/study.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/core/submission.h"
#include "server/frameworks/frameworks.h"
#include "server/identity/permissions.h"
#include "server/rpc/handler_context.h"
#include "server/services/watch_hub.h"

namespace scalelab::server {

class StudyService final : public v1::StudyService::CallbackService {
 public:
  StudyService(Coordinator& coordinator, const HandlerContext& handler, WatchHub& watches,
               const Scheduler& scheduler, Frameworks& frameworks, std::vector<std::string> notify_commands)
      : coordinator_(coordinator),
        handler_(handler),
        watches_(watches),
        scheduler_(scheduler),
        frameworks_(frameworks),
        notify_commands_(std::move(notify_commands)) {}

  grpc::ServerUnaryReactor* CreateStudy(grpc::CallbackServerContext*, const v1::CreateStudyRequest*,
                                        v1::CreateStudyResponse*) override;
  grpc::ServerUnaryReactor* PlanStudy(grpc::CallbackServerContext*, const v1::PlanStudyRequest*,
                                      v1::PlanStudyResponse*) override;
  grpc::ServerUnaryReactor* GetStudy(grpc::CallbackServerContext*, const v1::GetStudyRequest*,
                                     v1::GetStudyResponse*) override;
  grpc::ServerUnaryReactor* ListStudies(grpc::CallbackServerContext*, const v1::ListStudiesRequest*,
                                        v1::ListStudiesResponse*) override;
  grpc::ServerWriteReactor<v1::WatchStudyResponse>* WatchStudy(grpc::CallbackServerContext*,
                                                               const v1::WatchStudyRequest*) override;
  grpc::ServerUnaryReactor* CancelStudy(grpc::CallbackServerContext*, const v1::CancelStudyRequest*,
                                        v1::CancelStudyResponse*) override;
  grpc::ServerUnaryReactor* RetryStudy(grpc::CallbackServerContext*, const v1::RetryStudyRequest*,
                                       v1::RetryStudyResponse*) override;
  grpc::ServerUnaryReactor* ResumeStudy(grpc::CallbackServerContext*, const v1::ResumeStudyRequest*,
                                        v1::ResumeStudyResponse*) override;
  grpc::ServerUnaryReactor* HoldStudy(grpc::CallbackServerContext*, const v1::HoldStudyRequest*,
                                      v1::HoldStudyResponse*) override;
  grpc::ServerUnaryReactor* ReleaseStudy(grpc::CallbackServerContext*, const v1::ReleaseStudyRequest*,
                                         v1::ReleaseStudyResponse*) override;
  grpc::ServerUnaryReactor* SetStudyPriority(grpc::CallbackServerContext*, const v1::SetStudyPriorityRequest*,
                                             v1::SetStudyPriorityResponse*) override;
  grpc::ServerUnaryReactor* DeleteStudy(grpc::CallbackServerContext*, const v1::DeleteStudyRequest*,
                                        v1::DeleteStudyResponse*) override;
  grpc::ServerUnaryReactor* ExplainStudy(grpc::CallbackServerContext*, const v1::ExplainStudyRequest*,
                                         v1::ExplainStudyResponse*) override;

 private:
  using CreateCall = UnaryCall<v1::CreateStudyResponse>;
  // A CreateStudy in progress.
  struct Creation {
    v1::CreateStudyRequest request;
    std::string owner;
    std::shared_ptr<CreateCall> call;
  };

  // If an earlier call with the same request id has created a study, responds with this study. Returns
  // whether there is one. Reads the database.
  absl::StatusOr<bool> AnswerEarlier(const Creation& creation);
  // Continues CreateStudy when the states of the engines are known. May compute for a long time.
  absl::Status Create(const Creation& creation, const FrameworkStates& engines);
  void AskAndCreate(std::shared_ptr<const Creation> creation);
  // Calls `then` with the states of the frameworks that the study needs. Reads files to determine the states.
  template <typename Response>
  void WithFrameworks(const v1::StudySpec& spec, std::shared_ptr<UnaryCall<Response>> call,
                      std::function<void(FrameworkStates)> then);
  // Calls `then` when the files of the data sets have been checked.
  template <typename Response>
  void AfterDatasets(Datasets datasets, std::shared_ptr<UnaryCall<Response>> call,
                     std::function<void()> then);

  // Finds the study, calls `change(id, done)` if `check(caller, study)` returns OK, and responds with
  // the changed study.
  template <typename Response, typename Change, typename Check>
  grpc::ServerUnaryReactor* ChangeStudy(grpc::CallbackServerContext* context, const std::string& name,
                                        Response* response, Change change, Check check);
  template <typename Response, typename Change>
  grpc::ServerUnaryReactor* ChangeStudy(grpc::CallbackServerContext* context, const std::string& name,
                                        Response* response, Change change) {
    return ChangeStudy(context, name, response, change, MayControl);
  }

  Coordinator& coordinator_;
  const HandlerContext handler_;
  WatchHub& watches_;
  const Scheduler& scheduler_;
  Frameworks& frameworks_;
  const std::vector<std::string> notify_commands_;  // names that a study may use
};

// Reads a study with its specification from the database.
absl::Status ReadStudy(db::Store& store, int64_t study_id, v1::Study* study);

}  // namespace scalelab::server
