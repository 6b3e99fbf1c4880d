#include "server/rpc/tls_relay.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/rpc/connections.h"
#include "tests/fakes/wall_clock.h"
#include "tls/openssl.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

// A client of the relay. Its functions block.
class Client {
 public:
  explicit Client(int fd) : fd_(fd), context_(SSL_CTX_new(TLS_client_method())) {
    SetAlpn("h2");
    const timeval limit{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Client() { close(fd_); }
  void SetAlpn(const std::string& protocol) {
    const std::string wire = std::string(1, static_cast<char>(protocol.size())) + protocol;
    SSL_CTX_set_alpn_protos(context_.get(), reinterpret_cast<const unsigned char*>(wire.data()),
                            static_cast<unsigned int>(wire.size()));
  }
  void SetVersion(int version) {
    SSL_CTX_set_min_proto_version(context_.get(), version);
    SSL_CTX_set_max_proto_version(context_.get(), version);
    SSL_CTX_set_security_level(context_.get(), 0);
  }
  bool Handshake() {
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd_);
    return SSL_connect(ssl_.get()) == 1;
  }
  void Send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const int n = SSL_write(ssl_.get(), bytes.data() + sent, static_cast<int>(bytes.size() - sent));
      ASSERT_GT(n, 0);
      sent += static_cast<size_t>(n);
    }
  }
  // Returns the bytes that arrive until the end of the connection, at most `size`.
  std::string Receive(size_t size = SIZE_MAX) {
    std::string bytes;
    char block[65536];
    while (bytes.size() < size) {
      const int n =
          SSL_read(ssl_.get(), block, static_cast<int>(std::min(size - bytes.size(), sizeof block)));
      if (n <= 0) break;
      bytes.append(block, static_cast<size_t>(n));
    }
    return bytes;
  }
  bool IsClosed() {
    char byte;
    const ssize_t size = recv(fd_, &byte, 1, 0);
    return size == 0 || (size < 0 && errno != EAGAIN);  // EAGAIN: the time limit of the socket
  }
  int fd() const { return fd_; }
  void EndSending() { SSL_shutdown(ssl_.get()); }

 private:
  const int fd_;
  tls::Context context_;
  tls::Ssl ssl_;
};

class TlsRelayTest : public testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);
    Start(absl::Seconds(10));
  }
  void TearDown() override {
    relay_.reset();
    absl::MutexLock lock(&mutex_);
    for (const int fd : taken_) close(fd);
  }
  void Start(absl::Duration handshake_limit) {
    relay_.reset();
    auto relay = TlsRelay::Start(
        *tls::MakeKeyPair({"scalelab"}),
        [this](int plain, int) {
          absl::MutexLock lock(&mutex_);
          taken_.push_back(plain);
        },
        handshake_limit);
    ASSERT_TRUE(relay.ok()) << relay.status();
    relay_ = *std::move(relay);
  }
  std::unique_ptr<Client> Connect() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    relay_->Add(pair[0]);
    return std::make_unique<Client>(pair[1]);
  }
  // Returns the decrypted end of the last connection; it blocks. The caller closes it.
  int Plain() {
    absl::MutexLock lock(&mutex_);
    const auto taken = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !taken_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&taken), absl::Seconds(20))) return -1;
    const int plain = taken_.back();
    taken_.pop_back();
    fcntl(plain, F_SETFL, 0);
    return plain;
  }

  std::unique_ptr<TlsRelay> relay_;
  absl::Mutex mutex_;
  std::vector<int> taken_ ABSL_GUARDED_BY(mutex_);
};

std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + (i >> 12));
  return bytes;
}

TEST_F(TlsRelayTest, RelaysAllBytesInBothDirectionsUpToTheEnd) {
  const auto client = Connect();
  ASSERT_TRUE(client->Handshake());
  const int plain = Plain();
  ASSERT_GE(plain, 0);
  std::thread echo([plain] {
    char block[10'000];
    for (ssize_t n; (n = recv(plain, block, sizeof block, 0)) > 0;) {
      for (ssize_t sent = 0; sent < n;) {
        const ssize_t m = send(plain, block + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
        if (m <= 0) break;
        sent += m;
      }
    }
    const std::string last = "the last bytes";
    (void)!send(plain, last.data(), last.size(), MSG_NOSIGNAL);
    close(plain);
  });
  const std::string sent = Bytes(8 << 20);
  std::string received;
  std::thread reader([&] { received = client->Receive(sent.size()); });
  client->Send(sent);
  reader.join();
  EXPECT_EQ(received == sent, true);
  // The end of the client's bytes reaches the other end, whose last bytes still reach the client.
  client->EndSending();
  EXPECT_EQ(client->Receive(), "the last bytes");
  echo.join();
}

TEST_F(TlsRelayTest, ServesTls12And13AndHttp2Only) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const auto client = Connect();
    client->SetVersion(version);
    EXPECT_TRUE(client->Handshake()) << version;
  }
  const auto old = Connect();
  old->SetVersion(TLS1_1_VERSION);
  EXPECT_FALSE(old->Handshake());
  const auto http1 = Connect();
  http1->SetAlpn("http/1.1");
  EXPECT_FALSE(http1->Handshake());
  const auto plain = Connect();
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  (void)!write(plain->fd(), preface.data(), preface.size());
  EXPECT_TRUE(plain->IsClosed() || plain->IsClosed()) << "the alert of TLS may come before the end";
}

TEST_F(TlsRelayTest, AHandshakeThatTakesTooLongEndsTheConnection) {
  Start(absl::Milliseconds(200));
  const auto silent = Connect();
  EXPECT_TRUE(silent->IsClosed());
  const auto client = Connect();
  EXPECT_TRUE(client->Handshake());
  EXPECT_GE(Plain(), 0);
}

TEST_F(TlsRelayTest, AHandshakeThatTakesTooLongEndsTheConnectionAlsoAfterTheClockWasSetBack) {
  Start(absl::Milliseconds(200));
  const WallClockShift shift(-3600);
  EXPECT_TRUE(Connect()->IsClosed());
}

// Writes to `plain` until it accepts no bytes for half a second. Returns the number of bytes.
size_t Fill(int plain) {
  fcntl(plain, F_SETFL, O_NONBLOCK);
  const std::string block(1 << 16, 'x');
  size_t total = 0;
  for (pollfd polled{plain, POLLOUT, 0}; poll(&polled, 1, 500) == 1 && (polled.revents & POLLOUT) != 0;) {
    const ssize_t n = send(plain, block.data(), block.size(), MSG_NOSIGNAL);
    if (n <= 0) break;
    total += static_cast<size_t>(n);
  }
  return total;
}

absl::Duration CpuTime() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return absl::DurationFromTimeval(used.ru_utime) + absl::DurationFromTimeval(used.ru_stime);
}

TEST_F(TlsRelayTest, ReceiversThatReadNothingStopTheirSendersAndUseNoProcessor) {
  const auto client = Connect();
  ASSERT_TRUE(client->Handshake());
  const int plain = Plain();
  ASSERT_GE(plain, 0);
  EXPECT_LT(Fill(plain), size_t{4} << 20) << "the buffers of the sockets and one block";
  std::thread sender([&] {
    const std::string block(1 << 16, 'y');
    int sent = 0;
    // Ends when the relay stops reading and the socket is full: then poll reports no room.
    for (pollfd polled{client->fd(), POLLOUT, 0}; poll(&polled, 1, 500) == 1 && sent < 64; ++sent)
      client->Send(block);
    EXPECT_LT(sent, 64);
  });
  sender.join();
  const absl::Duration before = CpuTime();
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_LT(CpuTime() - before, absl::Milliseconds(100));
  // One end has closed the connection, while the other does not read.
  close(plain);
  const absl::Duration closed = CpuTime();
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_LT(CpuTime() - closed, absl::Milliseconds(100));
}

TEST_F(TlsRelayTest, TheEndOfAClientWithoutACloseAlertReachesGrpc) {
  auto client = Connect();
  ASSERT_TRUE(client->Handshake());
  client->Send("half a request");
  client.reset();
  const int plain = Plain();
  ASSERT_GE(plain, 0);
  std::string received;
  char block[100];
  for (ssize_t n; (n = recv(plain, block, sizeof block, 0)) > 0;)
    received.append(block, static_cast<size_t>(n));
  EXPECT_EQ(received, "half a request");
  close(plain);
}

TEST_F(TlsRelayTest, ManyConnectionsAtOnceAreServed) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(Connect());
  std::vector<std::thread> threads;
  std::atomic<int> served = 0;
  for (const auto& client : clients) threads.emplace_back([&] { served += client->Handshake() ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 100);
}

TEST(TlsRelayKey, ThatCannotBeUsedIsAnError) {
  const auto take = [](int plain, int) { close(plain); };
  const tls::KeyPair one = *tls::MakeKeyPair({"a"}), other = *tls::MakeKeyPair({"b"});
  const auto start = [&](const tls::KeyPair& pair) {
    const auto relay = TlsRelay::Start(pair, take);
    EXPECT_TRUE(absl::IsInvalidArgument(relay.status())) << relay.status();
    return std::string(relay.status().message());
  };
  EXPECT_THAT(start({one.certificate, other.key}), HasSubstr("does not belong"));
  EXPECT_THAT(start({one.certificate, "none"}), HasSubstr("no private key"));
  EXPECT_THAT(start({"none", one.key}), HasSubstr("certificate"));
}

TEST(EncryptedConnections, AreKnownByTheDescriptorOfGrpcToo) {
  int tcp[2], plain[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, tcp), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, plain), 0);
  ConnectionLimits limits;
  limits.authentication_time = absl::ZeroDuration();
  limits.unauthenticated = 1;
  Connections connections(limits);
  const std::string peer = absl::StrCat("fd:", plain[0]);
  ASSERT_EQ(connections.Admit(tcp[0], "10.0.0.1"), "");
  connections.SetPlain(plain[0], tcp[0]);
  EXPECT_EQ(connections.PeerOf(peer), "10.0.0.1");
  EXPECT_NE(connections.Admit(plain[1], "10.0.0.1"), "") << "one connection is not authenticated";
  connections.MarkAuthenticated(peer);
  EXPECT_FALSE(connections.Sweep()) << "no connection is left to be watched";
  EXPECT_EQ(connections.Admit(plain[1], "10.0.0.1"), "");
  EXPECT_EQ(connections.open(), 2);
  // The number of gRPC's descriptor belongs to another connection now.
  ASSERT_EQ(connections.Admit(plain[0], "10.0.0.2"), "");
  EXPECT_EQ(connections.PeerOf(peer), "10.0.0.2");
  for (const int fd : {tcp[0], tcp[1], plain[0], plain[1]}) close(fd);
}

}  // namespace
}  // namespace scalelab::server
