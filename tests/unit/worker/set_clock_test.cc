// Tests of a worker's client after the wall clock of its node was set back by an hour. They have a program of their own,
// because the timers of gRPC 1.51 in this process stop: they wait until the kernel's clock has reached the shifted time.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "tests/fakes/fake_worker_service.h"
#include "tests/fakes/wall_clock.h"
#include "tests/unit/worker/temp_dir.h"
#include "worker/grpc_coordinator_client.h"
#include "worker/process/steady_time.h"

namespace scalelab::worker {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(2);

class SetClockTest : public ::testing::Test {
 protected:
  // A wait until a time of the wall clock that begins now ends an hour late, as if the clock were set back during the wait.
  static void SetUpTestSuite() {
    wall_clock_shifts_timeouts = true;
    [[maybe_unused]] static const auto* ahead = new WallClockShift(3600);
  }

  std::unique_ptr<CoordinatorClient> Client() const {
    return *NewGrpcCoordinatorClient({{address_}, "alloc", "s3cret"}, kDeadline);
  }
  // Makes a call and returns its status; ABORTED if it does not end within 15 seconds of the steady clock.
  static absl::Status Report(CoordinatorClient& client) {
    return StatusOf([&](auto done) {
      client.ReportEvents({}, [done](const auto& response) { done(response.status()); });
    });
  }
  // A call that FakeWorkerService does not answer for ten seconds.
  static absl::Status Poll(CoordinatorClient& client) {
    v1::SynchronizeRequest request;
    request.set_generation(1);
    return StatusOf([&](auto done) {
      client.Synchronize(request, [done](const auto& response) { done(response.status()); });
    });
  }

  TempDir dir_;
  const std::string path_ = dir_ / "sock";
  const std::string address_ = "unix:" + path_;

 private:
  using Done = std::function<void(const absl::Status&)>;
  static absl::Status StatusOf(const std::function<void(Done)>& call) {
    const auto ended = std::make_shared<std::promise<absl::Status>>();
    std::future<absl::Status> status = ended->get_future();
    call([ended](const absl::Status& result) { ended->set_value(result); });
    if (status.wait_for(std::chrono::seconds(15)) != std::future_status::ready)
      return absl::AbortedError("the call does not end");
    return status.get();
  }
};

// A listening socket whose connections are never read.
class SilentServer {
 public:
  explicit SilentServer(const std::string& path) : socket_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    listening_ = bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                 listen(socket_, 10) == 0;
  }
  ~SilentServer() { close(socket_); }
  SilentServer(const SilentServer&) = delete;
  bool listening() const { return listening_; }

 private:
  const int socket_;
  bool listening_ = false;
};

TEST_F(SetClockTest, ReachesACoordinatorThatWasRestarted) {
  testing::FakeWorkerService service(address_, "alloc", "s3cret");
  const auto client = Client();
  ASSERT_TRUE(Report(*client).ok());
  service.StopServing();
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(Report(*client)));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  service.StartServing();
  const absl::Duration started = SteadyNow();
  absl::Status status = Report(*client);
  while (!status.ok() && SteadyNow() - started < absl::Seconds(10)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    status = Report(*client);
  }
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(SetClockTest, ACallEndsAtItsDeadline) {
  const testing::FakeWorkerService service(address_, "alloc", "s3cret");
  const auto client = Client();
  const absl::Duration began = SteadyNow();
  const absl::Status status = Poll(*client);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_GE(SteadyNow() - began, kDeadline);
  EXPECT_LT(SteadyNow() - began, 3 * kDeadline);
}

TEST_F(SetClockTest, ReachesACoordinatorAfterAnAttemptToConnectThatNeverEnds) {
  const SilentServer silent(path_);
  ASSERT_TRUE(silent.listening());
  const auto client = Client();
  const absl::Status status = Report(*client);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  ASSERT_EQ(unlink(path_.c_str()), 0);
  const testing::FakeWorkerService service(address_, "alloc", "s3cret");
  EXPECT_TRUE(Report(*client).ok());
}

}  // namespace
}  // namespace scalelab::worker
