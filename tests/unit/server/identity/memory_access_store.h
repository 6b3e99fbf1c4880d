// An AccessStore in memory.
#pragma once

#include <vector>

#include "absl/synchronization/mutex.h"
#include "db/access/access_store.h"

namespace scalelab::server {

class MemoryAccessStore final : public db::AccessStore {
 public:
  absl::StatusOr<int64_t> PutToken(const db::TokenRow& token) override {
    absl::MutexLock lock(&mutex);
    if (!status.ok()) return status;
    ++writes;
    if (token.id != 0) {
      tokens.at(token.id - 1) = token;
      return token.id;
    }
    tokens.push_back(token);
    tokens.back().id = static_cast<int64_t>(tokens.size());
    return tokens.back().id;
  }
  absl::StatusOr<std::vector<db::TokenRow>> ListTokens() override {
    absl::MutexLock lock(&mutex);
    return tokens;
  }
  absl::Status AppendAudit(const std::vector<db::AuditRow>& rows) override {
    absl::MutexLock lock(&mutex);
    if (!status.ok()) return status;
    ++writes;
    audit.insert(audit.end(), rows.begin(), rows.end());
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<db::AuditRow>> ListAudit(const db::AuditFilter&) override {
    absl::MutexLock lock(&mutex);
    return audit;
  }
  std::vector<db::AuditRow> Audit() { return *ListAudit({}); }

  absl::Mutex mutex;
  absl::Status status;  // of writes
  int writes = 0;
  std::vector<db::TokenRow> tokens;
  std::vector<db::AuditRow> audit;
};

}  // namespace scalelab::server
