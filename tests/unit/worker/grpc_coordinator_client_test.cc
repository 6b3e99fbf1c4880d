#include "worker/grpc_coordinator_client.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "tests/fakes/fake_worker_service.h"
#include "tests/unit/worker/temp_dir.h"

namespace scalelab::worker {
namespace {

// A call holds a reference to its channel. The thread that releases the last reference joins gRPC's threads.
// If it were one of these threads, the process would crash.
TEST(GrpcCoordinatorClient, LeavesNothingOfACallBehind) {
  TempDir dir;
  const std::string address = "unix:" + (dir / "sock");
  testing::FakeWorkerService service(address, "alloc", "s3cret");
  absl::Notification answered, gone;
  bool outlived = false;
  auto client = *NewGrpcCoordinatorClient({{address}, "alloc", "s3cret"});
  {
    const std::shared_ptr<void> last(
        nullptr, [&](void*) { outlived = gone.WaitForNotificationWithTimeout(absl::Milliseconds(200)); });
    client->ReportEvents({},
                         [&answered, last](absl::StatusOr<v1::ReportEventsResponse>) { answered.Notify(); });
  }
  answered.WaitForNotification();
  client.reset();
  gone.Notify();
  EXPECT_FALSE(outlived) << "the client was gone before its call";
}

}  // namespace
}  // namespace scalelab::worker
