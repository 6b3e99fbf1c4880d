#include "server/metrics/http_server.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/wall_clock.h"
#include "tests/unit/server/metrics/http_get.h"

namespace scalelab::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    auto server = HttpServer::Start(
        "127.0.0.1:0",
        {[this] { return absl::StrCat("scrapes ", ++scrapes_, "\n"); }, [this] { return problem_; }});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int Connect() const { return ConnectTo(server_->port()); }
  std::string Ask(const std::string& request) const { return AskHttp(server_->port(), request); }
  std::string Get(const std::string& path) const { return HttpGet(server_->port(), path); }

  std::atomic<int> scrapes_ = 0;
  std::string problem_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, MetricsAreServedAsText) {
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nscrapes 1\n"));
}

TEST_F(HttpServerTest, HealthHasTheReason) {
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200"));
  problem_ = "database";
  const std::string answer = Get("/healthz");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\ndatabase\n"));
}

TEST_F(HttpServerTest, OtherRequestsAreRefused) {
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask("no HTTP at all\r\n\r\n"), testing::Not(HasSubstr("200")));
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n"),
              testing::Not(HasSubstr("scrapes")));
  EXPECT_EQ(scrapes_, 0);
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ConnectionsAreBounded) {
  std::vector<int> idle;
  for (int i = 0; i < 40; ++i) idle.push_back(Connect());
  for (const int fd : idle) close(fd);
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AClockThatIsSetForwardsClosesNoConnection) {
  const int fd = Connect();
  const std::string begin = "GET /healthz HTTP/1.1\r\n", end = "Host: localhost\r\nConnection: close\r\n\r\n";
  (void)!send(fd, begin.data(), begin.size(), MSG_NOSIGNAL);
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200")) << "the server has accepted both connections";
  const WallClockShift shift(3600);
  server_->CloseOld();
  (void)!send(fd, end.data(), end.size(), MSG_NOSIGNAL);
  char answer[12] = "";
  (void)!recv(fd, answer, sizeof answer, MSG_WAITALL);
  close(fd);
  EXPECT_EQ(std::string(answer, sizeof answer), "HTTP/1.1 200");
}

TEST_F(HttpServerTest, ScrapesInParallelAreAllAnswered) {
  std::vector<std::thread> threads;
  std::atomic<int> answered = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) answered += Get("/metrics").find("200 OK") != std::string::npos;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, 160);
}

TEST(HttpServer, OnlyLoopbackAddressesAreServed) {
  for (const char* good : {"127.0.0.1:9464", "localhost:9464", "[::1]:9464", "127.0.0.2:1"})
    EXPECT_TRUE(CheckLoopback(good).ok()) << good;
  for (const char* bad :
       {"0.0.0.0:9464", "10.0.0.1:9464", "example.org:9464", "[::]:9464", "unix:/tmp/x", "9464"})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckLoopback(bad))) << bad;
}

TEST_F(HttpServerTest, APortInUseIsReported) {
  const auto second = HttpServer::Start(absl::StrCat("127.0.0.1:", server_->port()), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("choose another"));
}

}  // namespace
}  // namespace scalelab::server
