// Tests of archives through the API: permissions, damaged files, and that a restore does not
// change the curve.
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "scalelab/v1/admin.grpc.pb.h"
#include "scalelab/v1/archive.grpc.pb.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "server/identity/secrets.h"
#include "tests/contract/archive_fixture.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class ArchiveServiceTest : public RpcServerTest {
 protected:
  ArchiveServiceTest() {
    for (const char* user : {"alice", "bob"}) AddToken(user, Scope::kSubmit);
    AddToken("ada", Scope::kAdmin);
    AddToken("vera", Scope::kSubmit);
    RpcServerOptions options = Options();
    options.identity.roles = {{"ada"}, {"alice", "bob"}, {"vera"}};
    Serve(options);
  }
  void AddToken(const std::string& user, Scope scope) {
    db::TokenRow row;
    row.user = user;
    row.scope = static_cast<int>(scope);
    row.hash = Sha256(user);
    ASSERT_TRUE(store_->PutToken(row).ok());
  }
  // Makes a final study of alice with results, as studies/1.
  void MakeStudy() {
    // No job must begin, because its row would stay until the scheduler reports its end.
    std::promise<void> drained;
    coordinator_->SetDrain(true, "", [&drained](const absl::StatusOr<int>&) { drained.set_value(); });
    drained.get_future().wait();
    v1::CreateStudyRequest create;
    *create.mutable_spec() = World::Spec({1, 2}, 3);
    v1::CreateStudyResponse created;
    const auto studies = v1::StudyService::NewStub(Tcp());
    ASSERT_TRUE(studies->CreateStudy(Context("alice").get(), create, &created).ok());
    v1::CancelStudyRequest cancel;
    cancel.set_name("studies/1");
    v1::CancelStudyResponse cancelled;
    ASSERT_TRUE(studies->CancelStudy(Context("alice").get(), cancel, &cancelled).ok());
    db::WriteBatch batch;
    batch.runs = store_->ListRuns({1, {}, -1, 10}).value();
    ASSERT_EQ(batch.runs.size(), 6u);
    for (db::RunRow& run : batch.runs) {
      run.state = db::RunState::kSucceeded;
      run.attempts = 1;
      run.started = 1'795'000'000'000'000 + run.id * 1'000'000;
      run.finished = run.started + 500'000;
      batch.attempts.push_back(db::AnAttempt(run.id, run.id));
      batch.attempts.back().state = db::AttemptState::kSucceeded;
      batch.attempts.back().assigned = run.started;
      batch.attempts.back().finished = run.finished;
      batch.attempts.back().directory = directory_;
      batch.summaries.push_back(db::ASummary(run.id, run.id, 100.0 + static_cast<double>(run.id)));
      batch.appends.push_back(db::AnAppend(run.id, 0, 0, 30));
      batch.appends.back().columns = {db::AColumn("train/loss", 0, {3, 2, 1})};
    }
    ASSERT_TRUE(store_->Commit(batch).ok());
  }
  v1::GetCurveResponse Curve(const std::string& study) {
    v1::GetCurveRequest request;
    request.set_study(study);
    v1::GetCurveResponse curve;
    const auto status = v1::ResultService::NewStub(Tcp())->GetCurve(Context("alice").get(), request, &curve);
    EXPECT_TRUE(status.ok()) << status.error_message();
    curve.clear_study();
    return curve;
  }
  grpc::Status Archive(const std::string& user, const std::string& name, std::string* bytes,
                       bool publish = false) {
    v1::ReadArchiveRequest request;
    request.set_name(name);
    request.set_publish(publish);
    auto context = Context(user);
    const auto stub = v1::ArchiveService::NewStub(Tcp());
    auto reader = stub->ReadArchive(context.get(), request);
    v1::ReadArchiveResponse piece;
    bytes->clear();
    while (reader->Read(&piece)) *bytes += piece.data();
    return reader->Finish();
  }
  grpc::Status Restore(const std::string& user, const std::string& bytes, v1::Study* study = nullptr) {
    v1::RestoreArchiveResponse response;
    auto context = Context(user);
    const auto stub = v1::ArchiveService::NewStub(Tcp());
    auto writer = stub->RestoreArchive(context.get(), &response);
    v1::RestoreArchiveRequest request;
    for (size_t at = 0; at < bytes.size(); at += 1000) {
      request.set_data(bytes.substr(at, 1000));
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (study != nullptr) *study = response.study();
    return status;
  }
  grpc::Status Import(const std::string& user, const std::string& bytes,
                      v1::RestoreArchiveResponse* response) {
    auto context = Context(user);
    const auto stub = v1::ArchiveService::NewStub(Tcp());
    auto writer = stub->RestoreArchive(context.get(), response);
    v1::RestoreArchiveRequest request;
    request.mutable_origin()->set_server("lab.example:4711");
    request.mutable_origin()->set_study("studies/70");
    request.mutable_origin()->set_sha256("0123");
    request.mutable_origin()->set_imported_by("mallory");
    for (size_t at = 0; at < bytes.size(); at += 1000) {
      request.set_data(bytes.substr(at, 1000));
      if (!writer->Write(request)) break;
      request.clear_origin();
    }
    writer->WritesDone();
    return writer->Finish();
  }
  void Delete(const std::string& name) {
    v1::DeleteStudyRequest request;
    request.set_name(name);
    v1::DeleteStudyResponse response;
    ASSERT_TRUE(
        v1::StudyService::NewStub(Tcp())->DeleteStudy(Context("alice").get(), request, &response).ok());
    absl::StatusOr<bool> more = true;
    while (more.ok() && *more) more = store_->Maintain();
    ASSERT_TRUE(more.ok());
  }
  size_t Studies() { return store_->ListStudies(0, 100, {}).value().size(); }
  std::vector<std::string> Audit() {
    v1::ListAuditEntriesResponse list;
    EXPECT_TRUE(v1::AdminService::NewStub(Tcp())->ListAuditEntries(Context("ada").get(), {}, &list).ok());
    std::vector<std::string> entries;
    for (const auto& e : list.entries())
      entries.push_back(absl::StrCat(e.user(), " ", e.action(), " ", e.target(), " ", e.result()));
    return entries;
  }
};

TEST_F(ArchiveServiceTest, TheCurveOfARestoredStudyEqualsThatBefore) {
  MakeStudy();
  const v1::GetCurveResponse before = Curve("studies/1");
  ASSERT_GT(before.ByteSizeLong(), 100u);
  std::string bytes;
  ASSERT_TRUE(Archive("alice", "studies/1", &bytes).ok());
  Delete("studies/1");
  v1::Study study;
  const grpc::Status restored = Restore("alice", bytes, &study);
  ASSERT_TRUE(restored.ok()) << restored.error_message();
  EXPECT_EQ(study.name(), "studies/2");
  EXPECT_EQ(study.owner(), "alice");
  EXPECT_EQ(study.counts().succeeded(), 6);
  EXPECT_EQ(Curve("studies/2").DebugString(), before.DebugString());

  // After the restore, the coordinator uses larger numbers.
  v1::CreateStudyRequest create;
  *create.mutable_spec() = World::Spec({1});
  v1::CreateStudyResponse created;
  ASSERT_TRUE(v1::StudyService::NewStub(Tcp())->CreateStudy(Context("alice").get(), create, &created).ok());
  EXPECT_EQ(created.study().name(), "studies/3");
  EXPECT_EQ(store_->ListRuns({3, {}, -1, 10}).value().front().id, 13);
  EXPECT_THAT(Audit(), AllOf(Contains("alice ReadArchive studies/1 OK"),
                             Contains("alice RestoreArchive studies/2 OK")));
}

TEST_F(ArchiveServiceTest, OnlyTheOwnerAndAdminsArchiveAndRestore) {
  MakeStudy();
  std::string bytes, none;
  EXPECT_EQ(Archive("bob", "studies/1", &none).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(none, "");
  ASSERT_TRUE(Archive("ada", "studies/1", &bytes).ok());
  Delete("studies/1");
  EXPECT_EQ(Restore("bob", bytes).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Studies(), 0u);
  EXPECT_THAT(Audit(), AllOf(Contains("bob ReadArchive studies/1 PERMISSION_DENIED"),
                             Contains("bob RestoreArchive archive of test of alice PERMISSION_DENIED")));
  EXPECT_TRUE(Restore("ada", bytes).ok());
  EXPECT_EQ(Restore("alice", bytes).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(ArchiveServiceTest, AViewerIsRefusedBeforeTheEndOfTheUpload) {
  v1::RestoreArchiveResponse response;
  auto context = Context("vera");
  const auto stub = v1::ArchiveService::NewStub(Tcp());
  auto writer = stub->RestoreArchive(context.get(), &response);
  v1::RestoreArchiveRequest request;
  request.set_data("the beginning of a file");
  writer->Write(request);
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(Audit(), Contains("vera RestoreArchive  PERMISSION_DENIED"));
}

// Anybody can write a file with correct checksums, whose rows may name any owner.
TEST_F(ArchiveServiceTest, OnlyAdminsRestoreAnArchiveThatAnotherServerHasWritten) {
  MakeStudy();
  std::string bytes;
  {
    const db::OpenFile foreign(directory_ + "/foreign");
    ASSERT_TRUE(db::WriteArchive(*store_, 1, db::TestSeal, foreign.fd()).ok());
    bytes = foreign.Bytes();
  }
  Delete("studies/1");
  const grpc::Status refused = Restore("alice", bytes);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr("another server"));
  EXPECT_TRUE(Restore("ada", bytes).ok());
}

TEST_F(ArchiveServiceTest, AnImportKeepsWhereTheStudyComesFromAndCanBeRepeated) {
  MakeStudy();
  const v1::GetCurveResponse before = Curve("studies/1");
  std::string bytes;
  ASSERT_TRUE(Archive("alice", "studies/1", &bytes, /*publish=*/true).ok());
  Delete("studies/1");
  v1::RestoreArchiveResponse first, second;
  ASSERT_TRUE(Import("ada", bytes, &first).ok());
  EXPECT_FALSE(first.existed());
  EXPECT_EQ(first.study().name(), "studies/2");
  EXPECT_EQ(first.study().origin().server(), "lab.example:4711");
  EXPECT_EQ(first.study().origin().study(), "studies/70");
  EXPECT_EQ(first.study().origin().sha256(), "0123");
  EXPECT_EQ(first.study().origin().imported_by(), "ada") << "the server says who it was";
  EXPECT_GT(first.study().origin().import_time().seconds(), 0);
  EXPECT_EQ(Curve("studies/2").DebugString(), before.DebugString());
  ASSERT_TRUE(Import("ada", bytes, &second).ok());
  EXPECT_TRUE(second.existed());
  EXPECT_EQ(second.study().name(), "studies/2");
  EXPECT_EQ(Studies(), 1u);

  // An archive of the import keeps the origin, and its deletion removes it.
  ASSERT_TRUE(Archive("ada", "studies/2", &bytes).ok());
  Delete("studies/2");
  v1::Study study;
  ASSERT_TRUE(Restore("ada", bytes, &study).ok());
  EXPECT_EQ(study.name(), "studies/3");
  EXPECT_EQ(study.origin().server(), "lab.example:4711");
  Delete("studies/3");
  EXPECT_FALSE(db::GetOrigin(*store_, 2).value().has_value());
  EXPECT_FALSE(db::GetOrigin(*store_, 3).value().has_value());
}

TEST_F(ArchiveServiceTest, AnImportNeedsTheRightsOfARestore) {
  MakeStudy();
  std::string bytes;
  ASSERT_TRUE(Archive("ada", "studies/1", &bytes, /*publish=*/true).ok());
  Delete("studies/1");
  v1::RestoreArchiveResponse response;
  EXPECT_EQ(Import("bob", bytes, &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Studies(), 0u);
}

TEST_F(ArchiveServiceTest, ADamagedOrCutArchiveStoresNothing) {
  MakeStudy();
  std::string bytes;
  ASSERT_TRUE(Archive("alice", "studies/1", &bytes).ok());
  Delete("studies/1");
  for (size_t at = 0; at < bytes.size(); at += bytes.size() / 20) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_EQ(Restore("alice", damaged).error_code(), grpc::StatusCode::DATA_LOSS) << at;
    EXPECT_EQ(Restore("alice", bytes.substr(0, at)).error_code(), grpc::StatusCode::DATA_LOSS) << at;
  }
  EXPECT_EQ(Studies(), 0u);
  EXPECT_TRUE(Restore("alice", bytes).ok());
}

TEST_F(ArchiveServiceTest, AnUploadThatIsCancelledStoresNothing) {
  MakeStudy();
  std::string bytes;
  ASSERT_TRUE(Archive("alice", "studies/1", &bytes).ok());
  Delete("studies/1");
  {
    v1::RestoreArchiveResponse response;
    auto context = Context("alice");
    const auto stub = v1::ArchiveService::NewStub(Tcp());
    auto writer = stub->RestoreArchive(context.get(), &response);
    v1::RestoreArchiveRequest request;
    request.set_data(bytes.substr(0, bytes.size() / 2));
    ASSERT_TRUE(writer->Write(request));
    context->TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(Studies(), 0u);
  EXPECT_TRUE(Restore("alice", bytes).ok());
}

TEST_F(ArchiveServiceTest, AStudyThatIsNotFinalIsNotArchived) {
  Submit();
  std::string bytes;
  const grpc::Status refused = Archive("ada", "studies/1", &bytes);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("scalelab study wait 1"));
  EXPECT_EQ(Archive("ada", "studies/9", &bytes).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ArchiveServiceTest, TheErrorForLogsOfARestoredRunNamesTheArchive) {
  MakeStudy();
  std::string bytes;
  ASSERT_TRUE(Archive("alice", "studies/1", &bytes).ok());
  Delete("studies/1");
  ASSERT_TRUE(Restore("alice", bytes).ok());
  v1::ReadRunLogRequest request;
  request.set_name("runs/7");
  auto context = Context("alice");
  const auto stub = v1::RunService::NewStub(Tcp());
  auto reader = stub->ReadRunLog(context.get(), request);
  v1::ReadRunLogResponse piece;
  EXPECT_FALSE(reader->Read(&piece));
  EXPECT_THAT(reader->Finish().error_message(), HasSubstr("archives have no logs"));
}

}  // namespace
}  // namespace scalelab::server
