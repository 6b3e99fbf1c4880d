// Tests of usage, the queue, drain mode, holds and priorities over real sockets.
#include "scalelab/v1/admin.grpc.pb.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

class AdminServiceTest : public RpcServerTest {
 protected:
  v1::ListQueueResponse Queue() {
    v1::ListQueueResponse queue;
    const grpc::Status status = v1::AdminService::NewStub(Unix())->ListQueue(Context().get(), {}, &queue);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return queue;
  }
  grpc::Status Drain(bool on, const std::string& reason) {
    v1::SetDrainRequest request;
    request.set_drain(on);
    request.set_reason(reason);
    v1::SetDrainResponse response;
    return v1::AdminService::NewStub(Unix())->SetDrain(Context().get(), request, &response);
  }
  template <typename Request, typename Response>
  grpc::Status Change(grpc::Status (v1::StudyService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                     Response*),
                      Request request, v1::Study* study) {
    Response response;
    const auto stub = v1::StudyService::NewStub(Unix());
    const grpc::Status status = ((*stub).*method)(Context().get(), request, &response);
    *study = response.study();
    return status;
  }
};

TEST_F(AdminServiceTest, TheQueueIsInOrderWithReasons) {
  for (int i = 0; i < 7; ++i) Submit();
  v1::ListQueueResponse queue = Queue();
  ASSERT_EQ(queue.entries_size(), 3) << "four jobs wait at the scheduler";
  EXPECT_EQ(queue.entries(0).study(), "studies/5");
  EXPECT_EQ(queue.entries(0).position(), 1);
  EXPECT_EQ(queue.entries(0).queued_runs(), 1);
  EXPECT_THAT(queue.entries(0).reason(),
              testing::AllOf(HasSubstr("priority 0"), HasSubstr("the limit pending_allocations of "),
                             HasSubstr("4 of 4")));
  v1::SetStudyPriorityRequest request;
  request.set_name("studies/7");
  request.set_priority(3);
  v1::Study study;
  ASSERT_TRUE(Change(&v1::StudyService::Stub::SetStudyPriority, request, &study).ok());
  EXPECT_EQ(study.priority(), 3);
  EXPECT_EQ(Queue().entries(0).study(), "studies/7");
  request.set_priority(1001);
  const grpc::Status refused = Change(&v1::StudyService::Stub::SetStudyPriority, request, &study);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("priority 1001 is not from -1000 to 1000"));
}

TEST_F(AdminServiceTest, AHeldStudySaysSoUntilItIsReleased) {
  Submit();
  v1::HoldStudyRequest hold;
  hold.set_name("studies/last");
  v1::Study study;
  ASSERT_TRUE(Change(&v1::StudyService::Stub::HoldStudy, hold, &study).ok());
  EXPECT_TRUE(study.held());
  EXPECT_THAT(Queue().entries(0).reason(), HasSubstr("its study is held"));
  v1::ReleaseStudyRequest release;
  release.set_name("studies/last");
  ASSERT_TRUE(Change(&v1::StudyService::Stub::ReleaseStudy, release, &study).ok());
  EXPECT_FALSE(study.held());
  hold.set_name("studies/99");
  EXPECT_EQ(Change(&v1::StudyService::Stub::HoldStudy, hold, &study).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdminServiceTest, DrainModeHasAReasonThatUsersSee) {
  ASSERT_TRUE(Drain(true, "new switch").ok());
  Submit();
  EXPECT_THAT(Queue().entries(0).reason(), HasSubstr("the service is being drained: new switch"));
  EXPECT_TRUE(store_->LoadServiceState()->drain.on);
  ASSERT_TRUE(Drain(false, "").ok());
  EXPECT_EQ(Queue().entries_size(), 0) << "its job is submitted";
  EXPECT_EQ(Drain(true, "two\nlines").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminServiceTest, UsageHasEveryUserWithAnythingAndNeedsAToken) {
  Submit();
  v1::ListUsageResponse usage;
  ASSERT_TRUE(v1::AdminService::NewStub(Unix())->ListUsage(Context().get(), {}, &usage).ok());
  ASSERT_EQ(usage.usages_size(), 1);
  EXPECT_EQ(usage.usages(0).pending_allocations(), 1);
  EXPECT_EQ(usage.usages(0).node_seconds(), 0);
  EXPECT_EQ(usage.half_life_seconds(), 7 * 24 * 3600);
  EXPECT_EQ(v1::AdminService::NewStub(Tcp())->ListUsage(Context().get(), {}, &usage).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(AdminServiceTest, AuditEntriesSinceATimeFarAwayAreNone) {
  Submit();
  const auto stub = v1::AdminService::NewStub(Unix());
  v1::ListAuditEntriesRequest request;
  v1::ListAuditEntriesResponse entries;
  ASSERT_TRUE(stub->ListAuditEntries(Context().get(), request, &entries).ok());
  ASSERT_GE(entries.entries_size(), 1);
  request.mutable_since()->set_seconds(10'000'000'000'000);  // more than 2^63 microseconds
  ASSERT_TRUE(stub->ListAuditEntries(Context().get(), request, &entries).ok());
  EXPECT_EQ(entries.entries_size(), 0);
}

}  // namespace
}  // namespace scalelab::server
