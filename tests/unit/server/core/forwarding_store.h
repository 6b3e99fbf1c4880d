// A store that passes every call to another store; tests override what they change.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "db/store.h"

namespace scalelab::server {

class ForwardingStore : public db::Store {
 public:
  explicit ForwardingStore(std::unique_ptr<db::Store> store) : store_(std::move(store)) {}

  absl::Status Commit(const db::WriteBatch& batch) override { return store_->Commit(batch); }
  absl::StatusOr<int64_t> PutToken(const db::TokenRow& token) override { return store_->PutToken(token); }
  absl::StatusOr<std::vector<db::TokenRow>> ListTokens() override { return store_->ListTokens(); }
  absl::Status AppendAudit(const std::vector<db::AuditRow>& rows) override {
    return store_->AppendAudit(rows);
  }
  absl::StatusOr<std::vector<db::AuditRow>> ListAudit(const db::AuditFilter& filter) override {
    return store_->ListAudit(filter);
  }
  absl::StatusOr<bool> Maintain() override { return store_->Maintain(); }
  absl::Status ReadRows(const std::function<absl::Status(db::Database&)>& read) override {
    return Read().ReadRows(read);
  }
  absl::Status WriteRows(const std::function<absl::Status(db::Database&)>& write) override {
    return store_->WriteRows(write);
  }
  void KeepInvisible(int64_t id) override { store_->KeepInvisible(id); }
  void StopKeeping(int64_t id) override { store_->StopKeeping(id); }
  absl::StatusOr<db::Snapshot> Load() override { return store_->Load(); }
  absl::StatusOr<db::Snapshot> LoadStudy(int64_t id) override { return store_->LoadStudy(id); }
  absl::StatusOr<db::ServiceState> LoadServiceState() override { return store_->LoadServiceState(); }
  absl::StatusOr<db::StudyRow> GetStudy(int64_t id) override { return Read().GetStudy(id); }
  absl::StatusOr<db::StudyRow> GetStudyHead(int64_t id) override { return Read().GetStudyHead(id); }
  absl::StatusOr<db::StudyRow> FindStudy(const std::string& name, const db::Viewer& viewer) override {
    return Read().FindStudy(name, viewer);
  }
  absl::StatusOr<db::StudyRow> FindRequest(const std::string& owner, const std::string& id) override {
    return Read().FindRequest(owner, id);
  }
  absl::StatusOr<std::vector<db::StudyRow>> ListStudies(int64_t before, int limit,
                                                        const db::Viewer& viewer) override {
    return Read().ListStudies(before, limit, viewer);
  }
  absl::StatusOr<std::vector<std::vector<int64_t>>> CountRuns(const std::vector<int64_t>& ids) override {
    return Read().CountRuns(ids);
  }
  absl::StatusOr<std::vector<db::CellRow>> ListCells(int64_t id) override { return Read().ListCells(id); }
  absl::StatusOr<std::vector<db::CellRow>> GetCells(const std::vector<int64_t>& ids) override {
    return Read().GetCells(ids);
  }
  absl::StatusOr<std::vector<db::CellValueRow>> ListCellValues(int64_t id) override {
    return Read().ListCellValues(id);
  }
  absl::StatusOr<std::vector<db::CellValueRow>> GetCellValues(int64_t id,
                                                              const std::vector<int>& numbers) override {
    return Read().GetCellValues(id, numbers);
  }
  absl::StatusOr<db::RunRow> GetRun(int64_t id) override { return Read().GetRun(id); }
  absl::StatusOr<std::vector<db::RunRow>> ListRuns(const db::RunFilter& filter) override {
    return Read().ListRuns(filter);
  }
  absl::StatusOr<std::string> GetProvenance(int64_t id) override { return Read().GetProvenance(id); }
  absl::StatusOr<std::vector<db::AttemptRow>> ListAttempts(int64_t id) override {
    return Read().ListAttempts(id);
  }
  absl::StatusOr<db::AllocationRow> GetAllocation(int64_t id) override { return Read().GetAllocation(id); }
  absl::StatusOr<std::vector<db::StreamRow>> ListStreams(int64_t id) override {
    return Read().ListStreams(id);
  }
  absl::StatusOr<db::RunSummary> GetSummary(int64_t id) override { return Read().GetSummary(id); }
  absl::StatusOr<std::vector<db::RunSummary>> ListSummaries(int64_t first, int64_t last) override {
    return Read().ListSummaries(first, last);
  }
  absl::StatusOr<db::SharedCurveRows> ListCurveRows(int64_t id) override { return Read().ListCurveRows(id); }
  absl::StatusOr<std::vector<db::RunTimes>> ListRunTimes(int64_t id) override {
    return Read().ListRunTimes(id);
  }
  absl::StatusOr<std::vector<db::AttemptTime>> ListAttemptTimes(
      int64_t id, const std::vector<db::CurveRow>& rows) override {
    return Read().ListAttemptTimes(id, rows);
  }
  absl::Status ReadPoints(const db::PointFilter& filter,
                          const std::function<void(db::Series)>& take) override {
    return Read().ReadPoints(filter, take);
  }

 protected:
  // Called before each read except Load, on the reading thread.
  virtual void BeforeRead() {}

 private:
  db::Store& Read() {
    BeforeRead();
    return *store_;
  }
  std::unique_ptr<db::Store> store_;
};

}  // namespace scalelab::server
