// Tests of a wall clock that is set by an hour. They have a program of their own, because the timers of gRPC
// 1.51 in this process stop: they wait until the kernel's clock has reached the shifted time.
#include <future>
#include <memory>

#include "scalelab/v1/archive.grpc.pb.h"
#include "tests/fakes/wall_clock.h"
#include "tests/unit/server/services/eventually.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

class SetClockTest : public RpcServerTest {
 protected:
  // A wait until a time of the wall clock that begins now ends an hour late, as if the clock were set back
  // during the wait.
  static void SetUpTestSuite() { [[maybe_unused]] static const auto* ahead = new WallClockShift(3600); }
  ~SetClockTest() override { store_->Release(); }

  void ServeWithLimit(absl::Duration limit) {
    RpcServerOptions options = Options();
    options.call_limit = limit;
    Serve(options);
  }
  // Makes a call, which is cancelled after ten seconds. The client cannot use a deadline, because a deadline
  // is a timer of gRPC.
  template <typename Call>
  static grpc::Status StatusOf(const Call& call) {
    grpc::ClientContext context;
    auto status = std::async(std::launch::async, [&] { return call(&context); });
    status.wait_for(std::chrono::seconds(10));
    context.TryCancel();
    return status.get();
  }
  grpc::Status ListStudies() {
    return StatusOf([&](grpc::ClientContext* context) {
      v1::ListStudiesResponse response;
      return v1::StudyService::NewStub(Unix())->ListStudies(context, {}, &response);
    });
  }
};

TEST_F(SetClockTest, TheServiceOfWorkersStillRecordsThatItHandlesCalls) {
  for (int i = 0; i < 2; ++i) {
    clock_.seconds += 3600;  // the clock of the coordinator, for which the last record is then old
    EXPECT_TRUE(Eventually([&] { return coordinator_->TakesCalls(); })) << i;
  }
}

TEST_F(SetClockTest, ACallEndsAtItsLimitThoughItsReadIsBlocked) {
  ServeWithLimit(absl::Milliseconds(200));
  store_->HoldAfter(0);
  const grpc::Status status = ListStudies();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("time limit"));
}

TEST_F(SetClockTest, AStreamEndsAtItsLimitThoughItsReadIsBlocked) {
  ServeWithLimit(absl::Milliseconds(200));
  store_->HoldAfter(0);
  const grpc::Status status = StatusOf([&](grpc::ClientContext* context) {
    v1::ReadRunLogRequest request;
    request.set_name("runs/1");
    v1::ReadRunLogResponse response;
    const auto reader = v1::RunService::NewStub(Unix())->ReadRunLog(context, request);
    EXPECT_FALSE(reader->Read(&response));
    return reader->Finish();
  });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
}

TEST_F(SetClockTest, AnUploadWhoseClientSendsNothingEnds) {
  ServeWithLimit(absl::Milliseconds(200));
  const grpc::Status status = StatusOf([&](grpc::ClientContext* context) {
    v1::RestoreArchiveResponse response;
    return v1::ArchiveService::NewStub(Unix())->RestoreArchive(context, &response)->Finish();
  });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("stopped sending"));
}

TEST_F(SetClockTest, NoCallEndsBecauseTheClockWasSetForwards) {
  store_->HoldAfter(0);
  wall_clock_shift += 3600;  // absl::Now follows within two seconds; its time in between must not matter
  auto status = std::async(std::launch::async, [&] { return ListStudies(); });
  EXPECT_TRUE(Eventually([&] { return store_->held() == 1; }));
  store_->Release();
  const grpc::Status listed = status.get();
  EXPECT_TRUE(listed.ok()) << listed.error_message();
}

}  // namespace
}  // namespace scalelab::server
