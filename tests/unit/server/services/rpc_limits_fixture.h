// The fixture of the tests in rpc_limits_test.cc and request_limits_test.cc.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/store_fixture.h"
#include "tests/unit/server/services/eventually.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {

class RpcLimitsTest : public RpcServerTest {
 protected:
  ~RpcLimitsTest() override { store_->Release(); }

  // Returns the number of calls that wait for a thread of the pool.
  int Queued(const std::string& pool) {
    for (const auto& [name, calls] : rpc_->queued_calls()) {
      if (name == pool) return static_cast<int>(calls);
    }
    return -1;
  }
  // Waits until the server reads nothing from the store for a tenth of a second. Returns false after ten
  // seconds.
  bool ReadsPause() {
    int before = -1;
    return Eventually([&] {
      const int now = store_->reads();
      absl::SleepFor(absl::Milliseconds(100));
      return std::exchange(before, now) == now;
    });
  }
  grpc::Status Create(v1::CreateStudyRequest request, v1::CreateStudyResponse* created) {
    return v1::StudyService::NewStub(Unix())->CreateStudy(Context().get(), request, created);
  }
  static v1::CreateStudyRequest Creation(const std::string& owner, const std::string& request_id) {
    v1::CreateStudyRequest request;
    *request.mutable_spec() = World::Spec({1});
    request.set_owner(owner);
    request.set_request_id(request_id);
    return request;
  }
  // Stores a final study whose runs have an attempt in each of the directories. The first run is runs/100.
  void StoreAttemptsIn(const std::vector<std::string>& directories) {
    db::WriteBatch batch;
    batch.studies = {db::AStudy(100)};
    batch.studies[0].state = db::StudyState::kSucceeded;
    batch.cells = {db::ACell(100, 100)};
    for (size_t i = 0; i < directories.size(); ++i) {
      const auto id = static_cast<int64_t>(100 + i);
      batch.runs.push_back(db::ARun(id, 100, 100));
      batch.runs.back().state = db::RunState::kSucceeded;
      batch.attempts.push_back(db::AnAttempt(id, id));
      batch.attempts.back().state = db::AttemptState::kSucceeded;
      batch.attempts.back().directory = directories[i];
    }
    ASSERT_TRUE(store_->Commit(batch).ok());
  }
  grpc::Status ReadLog(int run, std::string* text) {
    v1::ReadRunLogRequest request;
    request.set_name(absl::StrCat("runs/", run));
    auto context = Context();
    v1::ReadRunLogResponse response;
    auto reader = v1::RunService::NewStub(Unix())->ReadRunLog(context.get(), request);
    while (reader->Read(&response)) *text += response.data();
    return reader->Finish();
  }
  // Stores an attempt of run 1 with `keys` metrics of `points` points.
  void StorePoints(int keys, int points) {
    Submit();
    db::WriteBatch batch;
    db::AttemptRow attempt;
    attempt.id = 7;
    attempt.run_id = 1;
    attempt.number = 1;
    attempt.token = "t";
    batch.attempts.push_back(attempt);
    db::StreamAppend append;
    append.attempt_id = 7;
    append.end_position = 10;
    append.end_line = points;
    for (int key = 0; key < keys; ++key) {
      db::PointColumn column;
      column.key = absl::StrCat("metric/", key);
      for (int i = 0; i < points; ++i) {
        column.line.push_back(i);
        column.step.push_back(i);
        column.time.push_back(i);
        column.value.push_back(i * 0.1 + key);
      }
      append.columns.push_back(std::move(column));
    }
    batch.appends.push_back(std::move(append));
    ASSERT_TRUE(store_->Commit(batch).ok());
  }
};

}  // namespace scalelab::server
