// Implements StudyService: changes go to the coordinator, reads go to the database.
#pragma once

#include "db/store.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/frameworks/frameworks.h"
#include "server/services/auth.h"
#include "server/services/reader_pool.h"

namespace scalelab::server {

class StudyService final : public v1::StudyService::CallbackService {
 public:
  StudyService(Coordinator& coordinator, db::Store& store, ReaderPool& readers, const Scheduler& scheduler,
               Frameworks& frameworks, const Auth& auth)
      : coordinator_(coordinator),
        store_(store),
        readers_(readers),
        scheduler_(scheduler),
        frameworks_(frameworks),
        auth_(auth) {}

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
  grpc::ServerUnaryReactor* DeleteStudy(grpc::CallbackServerContext*, const v1::DeleteStudyRequest*,
                                        v1::DeleteStudyResponse*) override;
  grpc::ServerUnaryReactor* ExplainStudy(grpc::CallbackServerContext*, const v1::ExplainStudyRequest*,
                                         v1::ExplainStudyResponse*) override;

 private:
  // Reads the study from the database, so the core thread must not call it.
  absl::Status Fill(int64_t study_id, v1::Study* study);
  // Continues CreateStudy when the states of the engines are known.
  void Create(const v1::CreateStudyRequest& request, const std::string& owner, const FrameworkStates& engines,
              v1::CreateStudyResponse* response, grpc::ServerUnaryReactor* reactor);

  Coordinator& coordinator_;
  db::Store& store_;
  ReaderPool& readers_;
  const Scheduler& scheduler_;
  Frameworks& frameworks_;
  const Auth& auth_;
};

}  // namespace scalelab::server
