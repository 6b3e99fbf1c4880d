#include "server/rpc/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/fakes/wall_clock.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

// A listener whose connections are closed by Close or at the end of the test.
class ListenerTest : public testing::Test {
 protected:
  ListenerTest() {
    std::string pattern = "/tmp/scalelab-listener-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~ListenerTest() override {
    listener_.reset();
    CloseAll();
    std::filesystem::remove_all(directory_);
  }

  void Listen(const ConnectionLimits& limits) {
    connections_ = std::make_unique<Connections>(limits);
    auto listener = Listener::Open(
        {*ParseAddress("unix:" + directory_ + "/socket"), *ParseAddress("127.0.0.1:0")}, *connections_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    port_ = ParseAddress(listener_->addresses()[1])->port;
    listener_->Start([this](int fd, std::optional<uid_t> uid) {
      absl::MutexLock lock(&mutex_);
      accepted_.push_back(fd);
      accounts_.push_back(uid);
    });
  }
  int Unix() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, (directory_ + "/socket").c_str(), sizeof address.sun_path - 1);
    return Connect(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  int Tcp() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return Connect(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  int Connect(int family, const sockaddr* address, socklen_t size) {
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_GE(fd, 0) << std::strerror(errno);
    EXPECT_EQ(connect(fd, address, size), 0) << std::strerror(errno);
    clients_.push_back(fd);
    return fd;
  }
  // Returns whether the server closes the connection within ten seconds.
  static bool IsClosed(int fd) {
    pollfd polled{fd, POLLIN, 0};
    char byte;
    return poll(&polled, 1, 10'000) == 1 && recv(fd, &byte, 1, 0) <= 0;
  }
  // Waits until the listener has accepted `count` connections in total.
  bool Accepted(size_t count) {
    absl::MutexLock lock(&mutex_);
    wanted_ = count;
    return mutex_.AwaitWithTimeout(absl::Condition(
                                       +[](ListenerTest* test) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                         return test->accepted_.size() >= test->wanted_;
                                       },
                                       this),
                                   absl::Seconds(10));
  }
  void CloseAccepted() {
    absl::MutexLock lock(&mutex_);
    for (const int fd : accepted_) close(fd);
    accepted_.clear();
  }
  void CloseAll() {
    CloseAccepted();
    for (const int fd : clients_) close(fd);
    clients_.clear();
  }

  std::string directory_;
  int port_ = 0;
  std::unique_ptr<Connections> connections_;
  std::unique_ptr<Listener> listener_;
  std::vector<int> clients_;
  absl::Mutex mutex_;
  std::vector<int> accepted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::optional<uid_t>> accounts_ ABSL_GUARDED_BY(mutex_);
  size_t wanted_ = 0;
};

TEST_F(ListenerTest, TheAccountAtTheOtherEndOfTheUnixSocketIsKnown) {
  Listen({});
  Unix();
  ASSERT_TRUE(Accepted(1));
  Tcp();
  ASSERT_TRUE(Accepted(2));
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(accounts_[0], geteuid());
  EXPECT_EQ(accounts_[1], std::nullopt);
}

TEST_F(ListenerTest, BytesOfAConnectionThatIsCutOffAreNotServed) {
  ConnectionLimits limits;
  limits.unauthenticated_bytes = 1 << 10;
  Listen(limits);
  const int client = Tcp();
  ASSERT_TRUE(Accepted(1));
  const std::string much(32 << 10, 'x');
  ASSERT_EQ(send(client, much.data(), much.size(), MSG_NOSIGNAL), static_cast<ssize_t>(much.size()));
  EXPECT_TRUE(IsClosed(client));
  absl::MutexLock lock(&mutex_);
  char byte;
  EXPECT_LE(recv(accepted_[0], &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(ListenerTest, AcceptsAgainAfterTheProcessHadNoDescriptors) {
  Listen({});
  // Uses all descriptors except one. The client gets this one, so accept fails.
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> ballast;
  for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY)) ballast.push_back(fd);
  close(ballast.back());
  ballast.pop_back();
  Unix();
  absl::SleepFor(absl::Milliseconds(50));  // nothing else shows that accept has failed
  for (const int fd : ballast) close(fd);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(Accepted(1));
  Tcp();
  EXPECT_TRUE(Accepted(2));
}

TEST_F(ListenerTest, ClosesConnectionsAboveALimitAndAcceptsWhenOthersAreGone) {
  ConnectionLimits limits;
  limits.total = 4;
  limits.tcp = 3;
  limits.per_address = 2;
  Listen(limits);
  Tcp();
  Tcp();
  ASSERT_TRUE(Accepted(2));
  EXPECT_TRUE(IsClosed(Tcp())) << "limit of one address";
  Unix();
  Unix();
  ASSERT_TRUE(Accepted(4));
  EXPECT_TRUE(IsClosed(Unix())) << "limit of all connections";
  CloseAll();
  Tcp();
  Unix();
  EXPECT_TRUE(Accepted(2));
}

TEST_F(ListenerTest, ClosesAConnectionThatDoesNotAuthenticate) {
  ConnectionLimits limits;
  limits.authentication_time = absl::Milliseconds(300);
  Listen(limits);
  const int silent = Tcp(), good = Tcp(), local = Unix();
  ASSERT_TRUE(Accepted(3));
  {
    absl::MutexLock lock(&mutex_);
    for (const int fd : accepted_) {
      sockaddr_in peer{}, own{};
      socklen_t size = sizeof peer, own_size = sizeof own;
      getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size);
      getsockname(good, reinterpret_cast<sockaddr*>(&own), &own_size);
      if (peer.sin_family == AF_INET && peer.sin_port == own.sin_port)
        connections_->MarkAuthenticated(absl::StrCat("fd:", fd));
    }
  }
  EXPECT_TRUE(IsClosed(silent));
  for (const int fd : {good, local}) {
    pollfd polled{fd, POLLIN, 0};
    EXPECT_EQ(poll(&polled, 1, 0), 0) << "stays open";
  }
}

TEST_F(ListenerTest, ClosesAConnectionThatDoesNotAuthenticateAlsoAfterTheClockWasSetBack) {
  ConnectionLimits limits;
  limits.authentication_time = absl::Milliseconds(300);
  Listen(limits);
  Unix();
  ASSERT_TRUE(Accepted(1)) << "the thread runs";
  const WallClockShift shift(-3600);
  EXPECT_TRUE(IsClosed(Tcp()));
}

TEST_F(ListenerTest, AClockThatIsSetForwardsClosesNoConnection) {
  Listen({});
  const int silent = Tcp();
  ASSERT_TRUE(Accepted(1));
  const WallClockShift shift(3600);
  absl::SleepFor(absl::Milliseconds(200));  // sweeps are 20 ms apart
  pollfd polled{silent, POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 0), 0) << "stays open";
}

TEST_F(ListenerTest, ClosesAConnectionThatSendsTooMuchWithoutAuthentication) {
  ConnectionLimits limits;
  limits.unauthenticated_bytes = 1000;
  Listen(limits);
  const int fd = Tcp();
  const std::string flood(10'000, 'x');
  (void)!send(fd, flood.data(), flood.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(IsClosed(fd));
}

TEST_F(ListenerTest, NamesAnAddressThatCannotBeServed) {
  Listen({});
  Connections connections({});
  for (const std::string& taken : {listener_->addresses()[0], listener_->addresses()[1]}) {
    const auto second = Listener::Open({*ParseAddress(taken)}, connections);
    ASSERT_FALSE(second.ok());
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(taken.substr(taken.find('/') + 1)));
  }
  EXPECT_FALSE(Listener::Open({*ParseAddress("203.0.113.7:1")}, connections).ok());
}

TEST(Connections, AnotherAccountHasTheLimitOfOneAddress) {
  ConnectionLimits limits;
  limits.per_address = 2;
  Connections connections(limits);
  std::vector<int> fds;
  const auto admit = [&](uid_t uid) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    fds.insert(fds.end(), {pair[0], pair[1]});
    return connections.Admit(pair[0], "", uid);
  };
  const uid_t other = geteuid() + 1;
  EXPECT_EQ(admit(other), "");
  EXPECT_EQ(admit(other), "");
  EXPECT_THAT(admit(other), HasSubstr(absl::StrCat("uid ", other, " has 2 connections")));
  EXPECT_EQ(admit(other + 1), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(admit(geteuid()), "") << "the own account has no limit";
  EXPECT_EQ(connections.PeerOf(absl::StrCat("fd:", fds[0])), absl::StrCat("uid ", other));
  connections.SetUser(fds[0], "alice");
  EXPECT_EQ(connections.UserOf(absl::StrCat("fd:", fds[0])), "alice");
  EXPECT_EQ(connections.UserOf(absl::StrCat("fd:", fds[2])), "");
  for (const int fd : fds) close(fd);
  EXPECT_EQ(admit(other), "") << "closed connections do not count";
  for (size_t i = fds.size() - 2; i < fds.size(); ++i) close(fds[i]);
}

TEST(ConnectionLimits, LeaveDescriptorsForTheProcess) {
  for (const int files : {128, 256, 1024, 65536}) {
    for (const bool tls : {false, true}) {
      const ConnectionLimits limits = ConnectionLimits::For(files, tls);
      EXPECT_LE(limits.total + (tls ? 2 * limits.tcp : 0), files - 96) << files;
      EXPECT_LT(limits.tcp, limits.total) << files;
      EXPECT_GE(limits.unauthenticated, 8) << files;
    }
  }
}

}  // namespace
}  // namespace scalelab::server
