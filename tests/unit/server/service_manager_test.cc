#include "server/service_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "server/time/clock.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/fakes/notify_socket.h"

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kVariable[] = "NOTIFY_SOCKET";

class ServiceManagerTest : public testing::Test {
 protected:
  ServiceManagerTest() : before_(spdlog::default_logger()) {
    auto logger =
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_));
    logger->set_pattern("%l %v");
    spdlog::set_default_logger(std::move(logger));
  }
  ~ServiceManagerTest() override {
    spdlog::set_default_logger(before_);
    unsetenv(kVariable);
  }
  // Returns the service manager of this process after `address` has been set as its NOTIFY_SOCKET.
  static ServiceManager At(const std::string& address) {
    setenv(kVariable, address.c_str(), 1);
    return ServiceManager::FromEnvironment();
  }
  std::string log() const { return log_.str(); }

 private:
  const std::shared_ptr<spdlog::logger> before_;
  std::ostringstream log_;
};

TEST_F(ServiceManagerTest, EachNotificationIsOneDatagram) {
  NotifySocket socket;
  const ServiceManager manager = At(socket.address());
  EXPECT_EQ(socket.Arrived(), "");
  manager.Ready("serving unix:/run/lab.sock");
  EXPECT_EQ(socket.Arrived(), "READY=1\nSTATUS=serving unix:/run/lab.sock");
  manager.Stopping();
  EXPECT_EQ(socket.Arrived(), "STOPPING=1");
  manager.Failed("lab.yaml:3:1: unknown key");
  EXPECT_EQ(socket.Arrived(), "STATUS=lab.yaml:3:1: unknown key");
  EXPECT_EQ(socket.Arrived(), "");
  EXPECT_EQ(log(), "");
}

TEST_F(ServiceManagerTest, AReloadHasTheTimeOfItsStart) {
  NotifySocket socket;
  const ServiceManager manager = At(socket.address());
  const absl::Duration before = Clock::System().Steady();
  manager.Reloading();
  const absl::Duration after = Clock::System().Steady();
  const std::string notification = socket.Arrived();
  absl::string_view text = notification;
  ASSERT_TRUE(absl::ConsumePrefix(&text, "RELOADING=1\nMONOTONIC_USEC=")) << notification;
  int64_t time = 0;
  ASSERT_TRUE(absl::SimpleAtoi(text, &time)) << notification;
  EXPECT_GE(time, absl::ToInt64Microseconds(before));
  EXPECT_LE(time, absl::ToInt64Microseconds(after));
}

TEST_F(ServiceManagerTest, AnAddressThatBeginsWithAnAtSignIsAnAbstractSocket) {
  NotifySocket socket(NotifySocket::Kind::kAbstract);
  ASSERT_THAT(socket.address(), StartsWith("@"));
  At(socket.address()).Ready("serving");
  EXPECT_EQ(socket.Arrived(), "READY=1\nSTATUS=serving");
  EXPECT_EQ(log(), "");
}

TEST_F(ServiceManagerTest, TheVariableIsRemovedFromTheEnvironment) {
  NotifySocket socket;
  At(socket.address());
  EXPECT_EQ(getenv(kVariable), nullptr);
}

TEST_F(ServiceManagerTest, WithoutTheVariableNothingIsSentAndNothingIsLogged) {
  unsetenv(kVariable);
  for (const ServiceManager& manager : {ServiceManager::FromEnvironment(), At("")}) {
    manager.Ready("serving");
    manager.Reloading();
    manager.Stopping();
  }
  EXPECT_EQ(log(), "");
}

// systemd ignores a notification of more than 4096 bytes, and one with a null byte.
TEST_F(ServiceManagerTest, AStatusCannotMakeSystemdIgnoreANotificationAndCannotAddAField) {
  NotifySocket socket;
  const ServiceManager manager = At(socket.address());
  manager.Ready(std::string(10'000, 'x'));
  const std::string ready = socket.Arrived();
  EXPECT_THAT(ready, StartsWith("READY=1\nSTATUS=xxx"));
  EXPECT_LE(ready.size(), 4096u);
  manager.Failed(absl::string_view("first\nMAINPID=1\0end", 19));
  EXPECT_EQ(socket.Arrived(), "STATUS=first MAINPID=1 end");
}

TEST_F(ServiceManagerTest, ASocketThatDoesNotExistIsLogged) {
  std::string address;
  {
    NotifySocket socket;
    address = socket.address();
  }
  At(address).Ready("serving");
  EXPECT_THAT(log(), AllOf(StartsWith(absl::StrCat("warning cannot send READY to the service manager at ",
                                                   address, " (NOTIFY_SOCKET): ")),
                           EndsWith("No such file or directory\n")));
}

TEST_F(ServiceManagerTest, AnAddressThatNamesNoSocketIsLogged) {
  At("vsock:2:1234").Stopping();
  EXPECT_THAT(log(), AllOf(HasSubstr("cannot send STOPPING"), HasSubstr("vsock:2:1234"),
                           HasSubstr("it must be an absolute path, or begin with @")));
  At(absl::StrCat("/", std::string(200, 'x'))).Stopping();
  EXPECT_THAT(log(), HasSubstr("it is too long"));
}

TEST_F(ServiceManagerTest, ASocketThatNobodyReadsBlocksForALimitedTime) {
  NotifySocket socket;
  const ServiceManager manager(socket.address(), absl::Milliseconds(1));
  // The queue of the socket has a limit: net.unix.max_dgram_qlen, or the memory of the sender.
  int sent = 0;
  for (; log().empty() && sent < 100'000; ++sent) manager.Stopping();
  EXPECT_THAT(log(), HasSubstr("its queue is full"));
  EXPECT_GT(sent, 1);
  EXPECT_EQ(socket.Arrived(), "STOPPING=1");
}

}  // namespace
}  // namespace scalelab::server
