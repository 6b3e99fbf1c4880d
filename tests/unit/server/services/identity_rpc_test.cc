// Tests of identities and permissions over real sockets: every method, with the tokens of several users.
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/status.h"
#include "scalelab/v1/admin.grpc.pb.h"
#include "scalelab/v1/analysis.grpc.pb.h"
#include "scalelab/v1/archive.grpc.pb.h"
#include "scalelab/v1/auth.grpc.pb.h"
#include "scalelab/v1/prediction.grpc.pb.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "server/identity/secrets.h"
#include "tests/unit/server/services/api_methods.h"
#include "tests/unit/server/services/eventually.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Le;
using testing::Not;
using testing::SizeIs;

// A method that concerns one study or run.
struct Method {
  std::string name;
  bool changes;  // whether only the owner and admins may call it
  std::function<grpc::Status(const std::shared_ptr<grpc::Channel>&, grpc::ClientContext*)> call;
};

template <typename Service, typename Request, typename Response>
Method Unary(const std::string& name, bool changes, Request request,
             grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*)) {
  return {name, changes, [=](const auto& channel, grpc::ClientContext* context) {
            Response response;
            return ((*Service::NewStub(channel)).*method)(context, request, &response);
          }};
}

template <typename Service, typename Request, typename Response>
Method Stream(const std::string& name, Request request,
              std::unique_ptr<grpc::ClientReader<Response>> (Service::Stub::*method)(grpc::ClientContext*,
                                                                                     const Request&),
              bool controls = false) {
  return {name, controls, [=](const auto& channel, grpc::ClientContext* context) {
            const auto stub = Service::NewStub(channel);
            auto reader = ((*stub).*method)(context, request);
            Response response;
            const bool answered = reader->Read(&response);
            if (answered) context->TryCancel();
            const grpc::Status status = reader->Finish();
            return answered ? grpc::Status::OK : status;
          }};
}

template <typename Request>
Request Named(const std::string& name) {
  Request request;
  request.set_name(name);
  return request;
}

// All methods that concern the study, and its first run.
std::vector<Method> MethodsAbout(const std::string& study, const std::string& run) {
  using v1::AnalysisService;
  using v1::ArchiveService;
  using v1::PredictionService;
  using v1::ResultService;
  using v1::RunService;
  using v1::StudyService;
  v1::ListRunsRequest list;
  list.set_parent(study);
  v1::GetCurveRequest curve;
  curve.set_study(study);
  v1::ReadPointsRequest points;
  points.set_run(run);
  v1::CompareCellsRequest compare;
  compare.add_studies(study);
  compare.set_axis("engine");
  v1::AdviseRanksRequest advise;
  advise.set_study(study);
  v1::CreatePredictionsRequest predict;
  predict.set_study(study);
  v1::ListPredictionsRequest predictions;
  predictions.set_study(study);
  v1::SetStudyPriorityRequest priority = Named<v1::SetStudyPriorityRequest>(study);
  priority.set_priority(-1);
  return {
      Unary<StudyService>("GetStudy", false, Named<v1::GetStudyRequest>(study),
                          &StudyService::Stub::GetStudy),
      Unary<StudyService>("ExplainStudy", false, Named<v1::ExplainStudyRequest>(study),
                          &StudyService::Stub::ExplainStudy),
      Stream<StudyService>("WatchStudy", Named<v1::WatchStudyRequest>(study),
                           &StudyService::Stub::WatchStudy),
      Unary<RunService>("ListRuns", false, list, &RunService::Stub::ListRuns),
      Unary<RunService>("GetRun", false, Named<v1::GetRunRequest>(run), &RunService::Stub::GetRun),
      Unary<RunService>("ExplainRun", false, Named<v1::ExplainRunRequest>(run),
                        &RunService::Stub::ExplainRun),
      Stream<RunService>("ReadRunLog", Named<v1::ReadRunLogRequest>(run), &RunService::Stub::ReadRunLog),
      Unary<ResultService>("GetCurve", false, curve, &ResultService::Stub::GetCurve),
      Stream<ResultService>("ReadPoints", points, &ResultService::Stub::ReadPoints),
      Unary<AnalysisService>("CompareCells", false, compare, &AnalysisService::Stub::CompareCells),
      Unary<AnalysisService>("AdviseRanks", false, advise, &AnalysisService::Stub::AdviseRanks),
      Unary<PredictionService>("ListPredictions", false, predictions,
                               &PredictionService::Stub::ListPredictions),
      Unary<PredictionService>("CreatePredictions", true, predict,
                               &PredictionService::Stub::CreatePredictions),
      Stream<ArchiveService>("ReadArchive", Named<v1::ReadArchiveRequest>(study),
                             &ArchiveService::Stub::ReadArchive, /*controls=*/true),
      Unary<StudyService>("HoldStudy", true, Named<v1::HoldStudyRequest>(study),
                          &StudyService::Stub::HoldStudy),
      Unary<StudyService>("ReleaseStudy", true, Named<v1::ReleaseStudyRequest>(study),
                          &StudyService::Stub::ReleaseStudy),
      Unary<StudyService>("SetStudyPriority", true, priority, &StudyService::Stub::SetStudyPriority),
      Unary<RunService>("RetryRun", true, Named<v1::RetryRunRequest>(run), &RunService::Stub::RetryRun),
      Unary<RunService>("CancelRun", true, Named<v1::CancelRunRequest>(run), &RunService::Stub::CancelRun),
      Unary<StudyService>("ResumeStudy", true, Named<v1::ResumeStudyRequest>(study),
                          &StudyService::Stub::ResumeStudy),
      Unary<StudyService>("RetryStudy", true, Named<v1::RetryStudyRequest>(study),
                          &StudyService::Stub::RetryStudy),
      Unary<StudyService>("CancelStudy", true, Named<v1::CancelStudyRequest>(study),
                          &StudyService::Stub::CancelStudy),
      Unary<StudyService>("DeleteStudy", true, Named<v1::DeleteStudyRequest>(study),
                          &StudyService::Stub::DeleteStudy),
  };
}

// Returns whether a request has a field for the name of a study or run: `name`, `parent`, or one like `target_study`.
bool NamesAStudyOrRun(const google::protobuf::Descriptor& request) {
  for (int i = 0; i < request.field_count(); ++i) {
    const auto& field = *request.field(i);
    if (field.type() != google::protobuf::FieldDescriptor::TYPE_STRING) continue;
    for (const absl::string_view word : absl::StrSplit(field.name(), '_')) {
      if (word == "name" || word == "parent" || word == "study" || word == "studies" || word == "run" ||
          word == "runs")
        return true;
    }
  }
  return false;
}

TEST(MethodsAbout, AStudyOrRunAreAllInTheTable) {
  std::set<std::string> table, found;
  for (const Method& method : MethodsAbout("studies/1", "runs/1")) table.insert(method.name);
  const auto services = ServicesOfTheApi();
  ASSERT_GE(services.size(), 11u);
  for (const auto* service : services) {
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const auto& method = *service->method(i);
      if (NamesAStudyOrRun(*method.input_type())) found.insert(method.name());
    }
  }
  found.erase("RevokeToken");  // its field `name` is the name of a token
  found.erase("CreateStudy");  // its field `study_file` is a text
  EXPECT_EQ(table, found);
}

class IdentityRpcTest : public RpcServerTest {
 protected:
  IdentityRpcTest() {
    for (const char* user : {"alice", "bob", "vera"}) {
      AddToken(user, Scope::kRead, std::string(user) + "-read");
      AddToken(user, Scope::kSubmit, std::string(user) + "-submit");
    }
    AddToken("ada", Scope::kAdmin, "ada-admin");
    RpcServerOptions options = Options();
    options.identity.roles = {{"ada"}, {"alice", "bob"}, {"vera"}};
    Serve(options);
  }
  void AddToken(const std::string& user, Scope scope, const std::string& secret) {
    db::TokenRow row;
    row.user = user;
    row.scope = static_cast<int>(scope);
    row.hash = Sha256(secret);
    ASSERT_TRUE(store_->PutToken(row).ok());
  }
  grpc::Status Make(const std::string& token, const Method& method) {
    auto context = Context(token);
    return method.call(Tcp(), context.get());
  }
  grpc::Status Create(const std::string& token, const v1::CreateStudyRequest& request,
                      v1::Study* study = nullptr) {
    v1::CreateStudyResponse created;
    auto context = Context(token);
    const auto status = v1::StudyService::NewStub(Tcp())->CreateStudy(context.get(), request, &created);
    if (study != nullptr) *study = created.study();
    return status;
  }
  static v1::CreateStudyRequest Study(bool is_private) {
    v1::CreateStudyRequest request;
    *request.mutable_spec() = World::Spec({1});
    if (is_private) request.mutable_spec()->set_visibility(v1::StudySpec::PRIVATE);
    return request;
  }
  std::vector<std::string> StudiesSeenBy(const std::string& token) {
    v1::ListStudiesResponse list;
    EXPECT_TRUE(v1::StudyService::NewStub(Tcp())->ListStudies(Context(token).get(), {}, &list).ok());
    std::vector<std::string> names;
    for (const auto& study : list.studies()) names.push_back(study.name());
    return names;
  }
  // Returns "user action target result xCOUNT" of the entries, oldest first.
  std::vector<std::string> AuditEntries(bool refused_only = false) {
    v1::ListAuditEntriesRequest request;
    request.set_refused_only(refused_only);
    v1::ListAuditEntriesResponse list;
    const auto status =
        v1::AdminService::NewStub(Tcp())->ListAuditEntries(Context("ada-admin").get(), request, &list);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::string> entries;
    for (const auto& e : list.entries())
      entries.insert(entries.begin(), absl::StrCat(e.user(), " ", e.action(), " ", e.target(), " ",
                                                   e.result(), " x", e.count()));
    return entries;
  }
};

TEST_F(IdentityRpcTest, APrivateStudyDoesNotExistForOthers) {
  std::map<std::string, std::string> missing;
  for (const Method& method : MethodsAbout("studies/1", "studies/1/runs/1"))
    missing[method.name] = Make("alice-submit", method).error_message();
  ASSERT_TRUE(Create("bob-submit", Study(true)).ok());
  for (const Method& method : MethodsAbout("studies/1", "studies/1/runs/1")) {
    SCOPED_TRACE(method.name);
    const grpc::Status status = Make("alice-submit", method);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(status.error_message(), missing[method.name]) << "the message reveals that the study exists";
    EXPECT_EQ(Make("vera-read", method).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  for (const char* name : {"studies/last", "studies/test"}) {
    EXPECT_EQ(Make("alice-submit", MethodsAbout(name, "1")[0]).error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_TRUE(Make("bob-read", MethodsAbout(name, "1")[0]).ok());
  }
  EXPECT_THAT(StudiesSeenBy("alice-read"), IsEmpty());
  EXPECT_THAT(StudiesSeenBy("bob-read"), ElementsAre("studies/1"));
  EXPECT_THAT(StudiesSeenBy("ada-admin"), ElementsAre("studies/1"));
  EXPECT_THAT(AuditEntries(true), testing::Contains("alice GetStudy studies/1 PERMISSION_DENIED x1"));
}

TEST_F(IdentityRpcTest, TheTextOfAStudyFileIsReturnedToThoseWhoMaySeeTheStudy) {
  v1::CreateStudyRequest request = Study(true);
  request.set_study_file("# for the paper\r\nstudy: test\t# Zürich\n");
  ASSERT_TRUE(Create("bob-submit", request).ok());
  v1::GetStudyRequest get;
  get.set_name("studies/1");
  v1::GetStudyResponse found;
  const auto studies = v1::StudyService::NewStub(Tcp());
  ASSERT_TRUE(studies->GetStudy(Context("bob-read").get(), get, &found).ok());
  EXPECT_FALSE(found.has_study_file()) << "nobody has asked for it";
  get.set_with_study_file(true);
  for (const char* token : {"bob-read", "ada-admin"}) {
    ASSERT_TRUE(studies->GetStudy(Context(token).get(), get, &found).ok());
    EXPECT_EQ(found.study_file(), request.study_file());
  }
  found.Clear();
  EXPECT_EQ(studies->GetStudy(Context("alice-read").get(), get, &found).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_FALSE(found.has_study_file());
}

TEST_F(IdentityRpcTest, ATextThatIsTooLongOrHasControlCharactersIsNotStored) {
  v1::GetStudyRequest get;
  get.set_name("studies/last");
  get.set_with_study_file(true);
  const auto studies = v1::StudyService::NewStub(Tcp());
  const std::string longest(256 << 10, '#');
  for (const std::string& text :
       {std::string(), longest + "#", std::string("study: \x1b[2J"), std::string("study: \x7f"),
        std::string("study: \xc2\x9b"
                    "2J")}) {
    v1::CreateStudyRequest request = Study(false);
    request.set_study_file(text);
    ASSERT_TRUE(Create("bob-submit", request).ok());
    v1::GetStudyResponse found;
    ASSERT_TRUE(studies->GetStudy(Context("bob-read").get(), get, &found).ok());
    EXPECT_FALSE(found.has_study_file()) << text.size() << " bytes";
  }
  v1::CreateStudyRequest request = Study(false);
  request.set_study_file(longest);
  ASSERT_TRUE(Create("bob-submit", request).ok());
  v1::GetStudyResponse found;
  ASSERT_TRUE(studies->GetStudy(Context("bob-read").get(), get, &found).ok());
  EXPECT_TRUE(found.study_file() == longest);
}

TEST_F(IdentityRpcTest, NewRolesApplyToTheNextCall) {
  ASSERT_TRUE(Create("bob-submit", Study(false)).ok());
  EXPECT_EQ(Create("vera-submit", Study(false)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  rpc_->SetRoles({{"ada"}, {"vera"}, {"alice"}});
  EXPECT_TRUE(Create("vera-submit", Study(false)).ok());
  EXPECT_EQ(Create("alice-submit", Study(false)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Create("bob-submit", Study(false)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(StudiesSeenBy("alice-read"), SizeIs(2));
}

TEST_F(IdentityRpcTest, APrivateStudyDoesNotHideAnOlderOneOfItsName) {
  ASSERT_TRUE(Create("alice-submit", Study(false)).ok());
  ASSERT_TRUE(Create("bob-submit", Study(true)).ok());
  v1::GetStudyResponse found;
  const auto studies = v1::StudyService::NewStub(Tcp());
  for (const char* name : {"studies/test", "studies/last"}) {
    ASSERT_TRUE(
        studies->GetStudy(Context("alice-read").get(), Named<v1::GetStudyRequest>(name), &found).ok());
    EXPECT_EQ(found.study().name(), "studies/1");
    ASSERT_TRUE(studies->GetStudy(Context("bob-read").get(), Named<v1::GetStudyRequest>(name), &found).ok());
    EXPECT_EQ(found.study().name(), "studies/2");
  }
}

TEST_F(IdentityRpcTest, OthersReadAStudyOfTheLabAndDoNotChangeIt) {
  ASSERT_TRUE(Create("bob-submit", Study(false)).ok());
  for (const Method& method : MethodsAbout("studies/1", "runs/1")) {
    SCOPED_TRACE(method.name);
    for (const char* token : {"alice-submit", "vera-read", "vera-submit", "bob-read"}) {
      const grpc::Status status = Make(token, method);
      const bool refused = status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
      EXPECT_EQ(refused, method.changes) << token << ": " << status.error_message();
    }
  }
  // None of the refused calls has had an effect; the owner may make each of them.
  v1::GetStudyResponse found;
  ASSERT_TRUE(v1::StudyService::NewStub(Tcp())
                  ->GetStudy(Context("bob-read").get(), Named<v1::GetStudyRequest>("studies/1"), &found)
                  .ok());
  EXPECT_EQ(found.study().counts().queued(), 1);
  for (const Method& method : MethodsAbout("studies/1", "runs/1")) {
    EXPECT_NE(Make("bob-submit", method).error_code(), grpc::StatusCode::PERMISSION_DENIED) << method.name;
  }
}

TEST_F(IdentityRpcTest, AnAdminControlsTheStudiesOfAll) {
  ASSERT_TRUE(Create("bob-submit", Study(true)).ok());
  for (const Method& method : MethodsAbout("studies/1", "runs/1")) {
    const auto code = Make("ada-admin", method).error_code();
    EXPECT_NE(code, grpc::StatusCode::PERMISSION_DENIED) << method.name;
  }
  EXPECT_THAT(StudiesSeenBy("ada-admin"), IsEmpty()) << "deleted";
}

TEST_F(IdentityRpcTest, TheOwnerIsTheCaller) {
  v1::Study study;
  ASSERT_TRUE(Create("alice-submit", Study(false), &study).ok());
  EXPECT_EQ(study.owner(), "alice");
  v1::CreateStudyRequest as_bob = Study(false);
  as_bob.set_owner("bob");
  EXPECT_EQ(Create("alice-submit", as_bob).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(Create("ada-admin", as_bob, &study).ok());
  EXPECT_EQ(study.owner(), "bob");
  v1::ListAuditEntriesRequest of_ada;
  of_ada.set_user("ada");
  v1::ListAuditEntriesResponse audited;
  ASSERT_TRUE(
      v1::AdminService::NewStub(Tcp())->ListAuditEntries(Context("ada-admin").get(), of_ada, &audited).ok());
  ASSERT_GE(audited.entries_size(), 1);
  EXPECT_EQ(audited.entries(0).target(), study.name());
  EXPECT_EQ(audited.entries(0).detail(), "for bob");
  EXPECT_EQ(Create("vera-submit", Study(false)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Create("alice-read", Study(false)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  v1::CreateStudyRequest urgent = Study(false);
  urgent.mutable_spec()->set_priority(1);
  EXPECT_EQ(Create("alice-submit", urgent).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Create("ada-admin", urgent).ok());
}

TEST_F(IdentityRpcTest, ARequestIdOfAnotherUserIsNoRetry) {
  v1::CreateStudyRequest request = Study(true);
  request.set_request_id("same");
  v1::Study of_bob, of_alice;
  ASSERT_TRUE(Create("bob-submit", request, &of_bob).ok());
  ASSERT_TRUE(Create("alice-submit", request, &of_alice).ok());
  EXPECT_NE(of_bob.name(), of_alice.name());
}

TEST_F(IdentityRpcTest, AllocationsOfPrivateStudiesHaveNoStudy) {
  ASSERT_TRUE(Create("bob-submit", Study(true)).ok());
  const auto study_of = [&](const std::string& token) {
    v1::GetClusterResponse cluster;
    EXPECT_TRUE(v1::ClusterService::NewStub(Tcp())->GetCluster(Context(token).get(), {}, &cluster).ok());
    EXPECT_EQ(cluster.allocations_size(), 1);
    return cluster.allocations_size() == 1 ? cluster.allocations(0).study() : "?";
  };
  EXPECT_EQ(study_of("alice-read"), "");
  EXPECT_EQ(study_of("bob-read"), "studies/1");
  EXPECT_EQ(study_of("ada-admin"), "studies/1");
}

TEST_F(IdentityRpcTest, TheReasonOfAnAllocationOfAPrivateStudyIsOnlyForThoseWhoMaySeeIt) {
  scheduler_.refuses = true;
  ASSERT_TRUE(Create("bob-submit", Study(true)).ok());
  const auto reason_for = [&](const std::string& token) {
    v1::GetClusterResponse cluster;
    EXPECT_TRUE(v1::ClusterService::NewStub(Tcp())->GetCluster(Context(token).get(), {}, &cluster).ok());
    return cluster.allocations_size() == 1 ? cluster.allocations(0).reason() : "?";
  };
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(reason_for("bob-read"), "the account lab-7"); }));
  EXPECT_THAT(reason_for("ada-admin"), HasSubstr("the account lab-7"));
  EXPECT_EQ(reason_for("alice-read"), "");
}

TEST_F(IdentityRpcTest, TheQueueExplainsAPrivateStudyOnlyToThoseWhoMaySeeIt) {
  ASSERT_TRUE(Create("bob-submit", Study(true)).ok());
  v1::HoldStudyResponse held;
  ASSERT_TRUE(v1::StudyService::NewStub(Tcp())
                  ->HoldStudy(Context("bob-submit").get(), Named<v1::HoldStudyRequest>("studies/1"), &held)
                  .ok());
  const auto reason_for = [&](const std::string& token) {
    v1::ListQueueResponse queue;
    EXPECT_TRUE(v1::AdminService::NewStub(Tcp())->ListQueue(Context(token).get(), {}, &queue).ok());
    EXPECT_EQ(queue.entries_size(), 1);
    return queue.entries_size() == 1 ? queue.entries(0).reason() : "?";
  };
  EXPECT_EQ(reason_for("alice-read"), "priority 0, bob has used 0 node-hours");
  for (const char* token : {"bob-read", "ada-admin"})
    EXPECT_THAT(reason_for(token), AllOf(HasSubstr("number 1"), HasSubstr("its study is held"))) << token;
}

TEST_F(IdentityRpcTest, AUserWithoutARoleIsRefused) {
  AddToken("eve", Scope::kAdmin, "eve-admin");
  RpcServerOptions options = Options();
  options.identity.roles = {{"ada"}, {"alice"}, {}};
  Serve(options);
  const grpc::Status status = List(Tcp(), "eve-admin");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("eve may not use this service"));
}

TEST_F(IdentityRpcTest, TheCallerIsKnownOnEveryTransport) {
  const auto who = [&](const std::shared_ptr<grpc::Channel>& channel, const std::string& token) {
    v1::GetIdentityResponse response;
    const auto status = v1::AuthService::NewStub(channel)->GetIdentity(Context(token).get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    const v1::Identity& me = response.identity();
    return absl::StrCat(me.user(), " ", v1::Role_Name(me.role()), " ", v1::Scope_Name(me.scope()), " ",
                        me.source());
  };
  const std::string service = Users({}).service();
  EXPECT_EQ(who(Unix(), ""), service + " ADMIN ADMIN_SCOPE unix socket");
  EXPECT_EQ(who(Unix(), "bob-read"), "bob USER READ_SCOPE token 3") << "a token counts more than the account";
  EXPECT_EQ(who(Tcp(), "right-token"), service + " ADMIN ADMIN_SCOPE client.token");
  EXPECT_EQ(who(Tcp(), "vera-submit"), "vera VIEWER SUBMIT_SCOPE token 6");
  EXPECT_EQ(List(Unix(), "wrong").error_code(), grpc::StatusCode::UNAUTHENTICATED)
      << "a wrong token must not fall back to the account";
}

TEST_F(IdentityRpcTest, AProxyOnTheSocketNeedsATokenAndNamesTheAddress) {
  RpcServerOptions options = Options();
  options.identity.proxies = {Users({}).service()};
  options.identity.roles.admins = {"ada"};
  Serve(options);
  EXPECT_EQ(List(Unix()).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(List(Unix(), "bob-read").ok());
  auto context = Context("wrong");
  context->AddMetadata("x-forwarded-for", "1.2.3.4, 10.9.8.7");
  v1::ListStudiesResponse response;
  EXPECT_FALSE(v1::StudyService::NewStub(Unix())->ListStudies(context.get(), {}, &response).ok());
  v1::ListAuditEntriesResponse list;
  ASSERT_TRUE(v1::AdminService::NewStub(Tcp())->ListAuditEntries(Context("ada-admin").get(), {}, &list).ok());
  ASSERT_GE(list.entries_size(), 1);
  EXPECT_EQ(list.entries(0).address(), "10.9.8.7") << "only the last address is the proxy's own";
}

TEST_F(IdentityRpcTest, ReflectionIsForCallersWhoMayUseTheServiceOnly) {
  RpcServerOptions options = Options();
  options.reflection = true;
  Serve(options);
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::string list_services("\x3a\x00", 2);
  EXPECT_THAT(Call(method, list_services), HasSubstr("StudyService"));
  options.identity.proxies = {Users({}).service()};  // this account needs a token
  options.identity.roles.admins = {"ada"};
  Serve(options);
  EXPECT_EQ(Call(method, list_services), "");
  v1::ListAuditEntriesResponse list;
  ASSERT_TRUE(v1::AdminService::NewStub(Tcp())->ListAuditEntries(Context("ada-admin").get(), {}, &list).ok());
  bool audited = false;
  for (const auto& entry : list.entries()) audited = audited || entry.action() == "ServerReflection";
  EXPECT_TRUE(audited);
}

TEST_F(IdentityRpcTest, CallersOfAProxyAreLimitedByTheirAddresses) {
  Submit();
  RpcServerOptions options = Options();
  options.identity.proxies = {Users({}).service()};
  Serve(options);
  const auto stub = v1::StudyService::NewStub(Unix());
  v1::WatchStudyRequest request;
  request.set_name("studies/1");
  struct Watch {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::WatchStudyResponse>> reader;
  };
  std::vector<Watch> watches;
  const auto opens = [&](const std::string& address) {
    Watch watch{Context("right-token"), nullptr};
    watch.context->AddMetadata("x-forwarded-for", address);
    watch.reader = stub->WatchStudy(watch.context.get(), request);
    v1::WatchStudyResponse state;
    const bool opened = watch.reader->Read(&state);
    watches.push_back(std::move(watch));
    return opened;
  };
  for (int i = 0; i < 128; ++i) ASSERT_TRUE(opens("10.0.0.1")) << i;
  EXPECT_FALSE(opens("10.0.0.1"));
  EXPECT_TRUE(opens("10.0.0.2"));
  for (Watch& watch : watches) watch.context->TryCancel();
}

// Connects to the Unix socket. Returns -1 if that fails.
int ConnectTo(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return fd;
  close(fd);
  return -1;
}

// A user directory that hangs on request. The threads of its lookups own it together with the test.
struct HangingUsers {
  absl::Mutex mutex;
  bool hang ABSL_GUARDED_BY(mutex) = false;
  std::atomic<int64_t> seconds = 0;  // of the clock that determines the age of answers

  void Hang(bool on) {
    absl::MutexLock lock(&mutex);
    hang = on;
  }
  std::string Name() {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(
        +[](bool* on) { return !*on; }, &hang));
    return "lab";
  }
};

TEST_F(IdentityRpcTest, AUserDirectoryThatHangsDelaysNoTcpConnection) {
  constexpr int kConnections = 8;  // as many as the pool has threads
  const auto users = std::make_shared<HangingUsers>();
  RpcServerOptions options = Options();
  options.identity.directory.name_of = [users](uid_t) { return users->Name(); };
  options.identity.directory.now = [users] { return absl::Seconds(users->seconds.load()); };
  options.identity.directory.patience = absl::Hours(1);
  Serve(options);
  users->seconds = 600;  // the name of this account is too old
  users->Hang(true);
  std::vector<int> local;
  for (int i = 0; i < kConnections; ++i) local.push_back(ConnectTo(directory_ + "/socket"));
  EXPECT_THAT(local, testing::Each(testing::Ge(0)));
  const auto waiting = [&] {
    for (const auto& [pool, works] : rpc_->queued_calls()) {
      if (pool == "connections") return works;
    }
    return size_t{0};
  };
  EXPECT_TRUE(Eventually([&] { return waiting() == kConnections / 2; })) << waiting();
  const grpc::Status answered = List(Tcp(), "right-token");
  EXPECT_TRUE(answered.ok()) << answered.error_message();
  EXPECT_EQ(waiting(), size_t{kConnections / 2});
  users->Hang(false);
  EXPECT_TRUE(List(Unix()).ok());
  for (const int fd : local) close(fd);
}

TEST_F(IdentityRpcTest, AConnectionOfAnAccountThatCannotBeLookedUpIsClosed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can connect as another account";
  constexpr uid_t kOther = 4'123'456;
  RpcServerOptions options = Options();
  options.socket_mode = 0666;
  options.identity.directory.name_of = [](uid_t uid) -> absl::StatusOr<std::string> {
    if (uid == kOther) return absl::UnavailableError("Connection refused");
    return "lab";
  };
  Serve(options);
  std::filesystem::permissions(directory_, std::filesystem::perms(0755));
  int fd = -1;
  // Unlike setresuid(2), the system call changes the account of the calling thread only.
  std::thread([&] {
    if (syscall(SYS_setresuid, kOther, kOther, kOther) == 0) fd = ConnectTo(directory_ + "/socket");
  }).join();
  ASSERT_GE(fd, 0);
  // gRPC would send its settings, and keep the connection open.
  pollfd readable{fd, POLLIN, 0};
  EXPECT_EQ(poll(&readable, 1, 10'000), 1);
  char byte = 0;
  EXPECT_EQ(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
  close(fd);
}

TEST_F(IdentityRpcTest, TokensAreCreatedListedAndRevoked) {
  const auto auth = v1::AuthService::NewStub(Tcp());
  v1::CreateTokenRequest request;
  request.set_description("laptop");
  v1::CreateTokenResponse created;
  ASSERT_TRUE(auth->CreateToken(Context("alice-submit").get(), request, &created).ok());
  EXPECT_EQ(created.token().user(), "alice");
  EXPECT_EQ(created.token().scope(), v1::SUBMIT_SCOPE);
  EXPECT_EQ(created.token().expire_time().seconds() - created.token().create_time().seconds(),
            30 * 24 * 3600);
  EXPECT_TRUE(List(Tcp(), created.secret()).ok());
  v1::CreateTokenResponse child;
  request.mutable_lifetime()->set_seconds(300 * 24 * 3600);
  ASSERT_TRUE(auth->CreateToken(Context(created.secret()).get(), request, &child).ok());
  EXPECT_LE(child.token().expire_time().seconds(), created.token().expire_time().seconds())
      << "a token cannot be prolonged";
  request.clear_lifetime();

  request.set_scope(v1::ADMIN_SCOPE);
  v1::CreateTokenResponse wider;
  EXPECT_EQ(auth->CreateToken(Context("alice-submit").get(), request, &wider).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  request.set_scope(v1::READ_SCOPE);
  request.mutable_lifetime()->set_seconds(401 * 24 * 3600);
  EXPECT_EQ(auth->CreateToken(Context("alice-submit").get(), request, &wider).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  v1::ListTokensResponse of_bob;
  ASSERT_TRUE(auth->ListTokens(Context("bob-read").get(), {}, &of_bob).ok());
  EXPECT_THAT(of_bob.tokens(), SizeIs(2));
  v1::RevokeTokenRequest revoke;
  revoke.set_name(created.token().name());
  v1::RevokeTokenResponse revoked;
  EXPECT_EQ(auth->RevokeToken(Context("bob-submit").get(), revoke, &revoked).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(auth->RevokeToken(Context("alice-submit").get(), revoke, &revoked).ok());
  EXPECT_TRUE(revoked.token().has_revoke_time());
  const grpc::Status status = List(Tcp(), created.secret());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), HasSubstr("was revoked"));
  Serve(Options());
  EXPECT_FALSE(List(Tcp(), created.secret()).ok()) << "a restart forgets no revocation";
}

TEST_F(IdentityRpcTest, TheAuditLogHasChangesAndRefusedCalls) {
  ASSERT_TRUE(Create("bob-submit", Study(false)).ok());
  v1::CreateStudyRequest checked = Study(false);
  checked.set_validate_only(true);
  ASSERT_TRUE(Create("bob-submit", checked).ok());
  ASSERT_TRUE(List(Tcp(), "bob-read").ok());
  const auto methods = MethodsAbout("studies/1", "runs/1");
  const auto by_name = [&](const std::string& name) {
    return *std::find_if(methods.begin(), methods.end(), [&](const Method& m) { return m.name == name; });
  };
  EXPECT_FALSE(Make("alice-submit", by_name("CancelStudy")).ok());
  EXPECT_TRUE(Make("bob-submit", by_name("CancelStudy")).ok());
  EXPECT_TRUE(Make("bob-submit", by_name("DeleteStudy")).ok());
  EXPECT_FALSE(List(Tcp()).ok());
  EXPECT_THAT(AuditEntries(),
              testing::UnorderedElementsAre(
                  "bob CreateStudy studies/1 OK x1", "alice CancelStudy studies/1 PERMISSION_DENIED x1",
                  "bob CancelStudy studies/1 OK x1", "bob DeleteStudy studies/1 OK x1",
                  " ListStudies  UNAUTHENTICATED x1"));
  EXPECT_THAT(AuditEntries(true), SizeIs(2));
  v1::ListAuditEntriesResponse list;
  EXPECT_EQ(
      v1::AdminService::NewStub(Tcp())->ListAuditEntries(Context("bob-submit").get(), {}, &list).error_code(),
      grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(IdentityRpcTest, PredictionsAreStoredForOwnStudiesAndOnlyShownForOthers) {
  ASSERT_TRUE(Create("bob-submit", Study(false)).ok());
  ASSERT_TRUE(Create("alice-submit", Study(false)).ok());
  const auto predict = [&](const std::string& token, const std::string& source, const std::string& target,
                           bool validate_only) {
    v1::CreatePredictionsRequest request;
    request.set_study(source);
    request.set_target_study(target);
    request.set_validate_only(validate_only);
    v1::CreatePredictionsResponse response;
    const auto stub = v1::PredictionService::NewStub(Tcp());
    return stub->CreatePredictions(Context(token).get(), request, &response).error_code();
  };
  const auto refused = grpc::StatusCode::PERMISSION_DENIED;
  for (const char* token : {"alice-submit", "alice-read", "vera-read", "bob-read"}) {
    EXPECT_EQ(predict(token, "studies/1", "", true), grpc::StatusCode::OK) << token;
    EXPECT_EQ(predict(token, "studies/1", "", false), refused) << token;
  }
  // The predictions belong to the target; the results of the source are only read.
  EXPECT_EQ(predict("alice-submit", "studies/1", "studies/2", false), grpc::StatusCode::OK);
  EXPECT_EQ(predict("bob-submit", "studies/1", "studies/2", false), refused);
  EXPECT_EQ(predict("bob-submit", "studies/1", "", false), grpc::StatusCode::OK);
}

TEST_F(IdentityRpcTest, AForgedSecretOfAnAllocationIsInTheAuditLog) {
  const auto stub = v1::WorkerService::NewStub(Tcp());
  const auto forged = [&] {
    auto context = Context("forged");
    context->AddMetadata("x-scalelab-allocation", "some-allocation");
    return context;
  };
  for (int i = 0; i < 50; ++i) {
    v1::SynchronizeResponse desired;
    EXPECT_EQ(stub->Synchronize(forged().get(), {}, &desired).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    v1::ReportEventsResponse stored;
    EXPECT_EQ(stub->ReportEvents(forged().get(), {}, &stored).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_THAT(AuditEntries(true), testing::UnorderedElementsAre(" Synchronize  UNAUTHENTICATED x50",
                                                                " ReportEvents  UNAUTHENTICATED x50"));
}

TEST_F(IdentityRpcTest, ForgedAndExpiredSessionTokensAreInTheAuditLog) {
  const SessionTokens& sessions = rpc_->identities().sessions();
  const absl::Time now = absl::Now();
  ASSERT_TRUE(List(Tcp(), sessions.Issue("bob", "munge", now)).ok());
  const std::string forged = SessionTokens("another key").Issue("ada", "munge", now);
  const std::string expired = sessions.Issue("bob", "munge", now - SessionTokens::kLifetime);
  int entries = 0;
  const auto reason_for = [&](const std::string& token) {
    const grpc::Status status = List(Tcp(), token);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("log in again"));
    v1::ListAuditEntriesRequest request;
    request.set_refused_only(true);
    v1::ListAuditEntriesResponse list;
    EXPECT_TRUE(
        v1::AdminService::NewStub(Tcp())->ListAuditEntries(Context("ada-admin").get(), request, &list).ok());
    EXPECT_EQ(list.entries_size(), ++entries);
    const v1::ListAuditEntriesResponse::Entry entry =
        list.entries_size() > 0 ? list.entries(0) : v1::ListAuditEntriesResponse::Entry();
    EXPECT_EQ(entry.action(), "ListStudies");
    EXPECT_EQ(entry.result(), "UNAUTHENTICATED");
    EXPECT_EQ(entry.detail(), status.error_message());
    EXPECT_EQ(entry.user(), "") << "the claims of a refused token prove nothing";
    return ReasonOf(FromGrpc(status));
  };
  EXPECT_EQ(reason_for(forged), "BAD_SESSION");
  EXPECT_EQ(reason_for(expired), "SESSION_EXPIRED");
}

TEST_F(IdentityRpcTest, AThousandWrongTokensAreAFewAuditEntries) {
  const auto channel = Tcp();
  for (int i = 0; i < 1000; ++i)
    ASSERT_EQ(List(channel, absl::StrCat("slt_guess-", i)).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  v1::ListAuditEntriesResponse list;
  ASSERT_TRUE(v1::AdminService::NewStub(Tcp())->ListAuditEntries(Context("ada-admin").get(), {}, &list).ok());
  int64_t calls = 0;
  for (const auto& entry : list.entries()) calls += entry.count();
  EXPECT_EQ(calls, 1000);
  EXPECT_THAT(list.entries(), SizeIs(Le(20u)));
}

TEST_F(IdentityRpcTest, AuditEntriesHavePages) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Create("bob-submit", Study(false)).ok());
  v1::ListAuditEntriesRequest request;
  request.set_page_size(2);
  std::vector<std::string> targets;
  const auto admin = v1::AdminService::NewStub(Tcp());
  do {
    v1::ListAuditEntriesResponse page;
    ASSERT_TRUE(admin->ListAuditEntries(Context("ada-admin").get(), request, &page).ok());
    for (const auto& entry : page.entries()) targets.push_back(entry.target());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(targets, ElementsAre("studies/5", "studies/4", "studies/3", "studies/2", "studies/1"));
}

}  // namespace
}  // namespace scalelab::server
