// Tests callers without permissions: raw clients, calls without a token, and wrong tokens of all kinds. All
// of their calls are refused, and the time of a refusal does not depend on the reason.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/e2e/raw_connection.h"
#include "tests/e2e/service.h"
#include "tls/credentials.h"
#include "tls/fetch.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kStudy[] =
    "study: confidential\nfixed: {engine: custom, ranks: 1, max_steps: 1, command: [\"true\"]}\n";

double LowerQuintile(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 5));
  return values[values.size() / 5];
}

class Refusals : public testing::Test {
 protected:
  struct TcpService : Service {
    explicit TcpService(int port) {
      AddFlags({"--listen", socket(), "--listen", absl::StrCat("127.0.0.1:", port), "--reflection", "true"});
    }
  };
  void SetUp() override {
    ASSERT_EQ(service_.Start(), "");
    service_.Submit(kStudy);
    token_ = std::string(absl::StripAsciiWhitespace(ReadFile(service_.data() + "/client.token")));
    ASSERT_FALSE(token_.empty());
    const auto presented = tls::FetchCertificate("127.0.0.1", absl::StrCat(port_), absl::Seconds(10));
    ASSERT_TRUE(presented.ok()) << presented.status();
    grpc::ChannelArguments arguments;
    const auto credentials = *tls::Trust(presented->certificate, arguments);
    studies_ = v1::StudyService::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port_), credentials, arguments));
  }
  // Lists the studies with a token. `milliseconds` is the time until the answer.
  grpc::Status List(const std::string& token, double* milliseconds = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::ListStudiesResponse studies;
    const double start = Now();
    const grpc::Status status = studies_->ListStudies(&context, {}, &studies);
    if (milliseconds != nullptr) *milliseconds = 1000 * (Now() - start);
    EXPECT_EQ(studies.studies_size(), status.ok() ? 1 : 0);
    return status;
  }
  // Returns wrong tokens, by the kind of their error.
  std::map<std::string, std::string> WrongTokens() {
    const auto with = [](std::string text, size_t at) {
      text[at] = text[at] == '0' ? '1' : '0';
      return text;
    };
    const Output created = service_.Run({"token", "create", "-q"});
    EXPECT_EQ(created.code, 0) << created.err;
    const std::string personal(absl::StripAsciiWhitespace(created.out));
    const std::string claims = absl::WebSafeBase64Escape("root\nmunge\n3\n4102444800000000");
    return {{"the first character of client.token", with(token_, 0)},
            {"the last character of client.token", with(token_, token_.size() - 1)},
            {"half of client.token", token_.substr(0, token_.size() / 2)},
            {"the first character of a personal token", with(personal, 4)},
            {"the last character of a personal token", with(personal, personal.size() - 1)},
            {"a personal token that was never made", "slt_" + std::string(64, 'a')},
            {"a session with a wrong signature", absl::StrCat("sls_", claims, ".", std::string(64, 'a'))},
            {"a session without a signature", "sls_" + claims}};
  }
  const int port_ = FreeTcpPort();
  TcpService service_{port_};
  std::string token_;
  std::unique_ptr<v1::StudyService::Stub> studies_;
};

TEST_F(Refusals, ARawHttp2ClientGetsAReasonAndNothingElse) {
  RawConnection raw(port_);
  // A complete call: headers, and an empty message.
  ASSERT_TRUE(raw.Send(RawConnection::Frame(RawConnection::kHeaders, 4, 1, RawConnection::CallHeaders()) +
                       RawConnection::Frame(0, 1, 1, std::string(5, '\0'))));
  const std::string answer = raw.ReceiveUntil("requires a token", 20);
  EXPECT_THAT(answer, HasSubstr("requires a token"));
  EXPECT_THAT(answer, Not(HasSubstr("confidential")));
  EXPECT_TRUE(List(token_).ok());
}

TEST_F(Refusals, AClientWithoutTlsGetsNothing) {
  for (const std::string& request : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                                     std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33)}) {
    const int fd = ConnectTcp(port_);
    ASSERT_GE(fd, 0);
    const timeval limit{20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ASSERT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    std::string answer;
    char piece[4096];
    ssize_t n = 0;
    while ((n = recv(fd, piece, sizeof piece, 0)) > 0) answer.append(piece, static_cast<size_t>(n));
    EXPECT_TRUE(n == 0 || errno == ECONNRESET) << "the connection stays open: " << errno;
    EXPECT_LE(answer.size(), 7u) << "more than an alert of TLS: " << absl::CHexEscape(answer);
    close(fd);
  }
  EXPECT_TRUE(List(token_).ok());
}

// Calls `measure(kind)`, which returns the time of a refusal, `rounds` times for each kind in random order.
// Expects that the time does not depend on the kind.
void ExpectSameTimes(std::vector<std::string> kinds, size_t rounds,
                     const std::function<double(const std::string& kind)>& measure) {
  std::mt19937 random(7);
  double slowest = 0, fastest = 0, typical = 0;
  // A busy machine can disturb one series of measurements. A difference that depends on the kind occurs
  // in every series.
  for (int series = 0; series < 3; ++series) {
    std::map<std::string, std::vector<double>> times;
    for (size_t round = 0; round < rounds; ++round) {
      std::ranges::shuffle(kinds, random);
      for (const std::string& kind : kinds) times[kind].push_back(measure(kind));
      if (testing::Test::HasFatalFailure()) return;
    }
    std::vector<double> typical_times;
    for (const auto& [kind, values] : times) {
      typical_times.push_back(LowerQuintile(values));
      std::printf("%s: %.3f ms\n", kind.c_str(), typical_times.back());
    }
    const auto [least, most] = std::ranges::minmax_element(typical_times);
    fastest = *least;
    slowest = *most;
    typical = LowerQuintile(typical_times);
    if (slowest - fastest < 0.2 * typical) break;
  }
  EXPECT_LT(slowest - fastest, 0.2 * typical);
}

TEST_F(Refusals, AThousandWrongAndMissingTokensTakeTheSameTimeEach) {
  std::map<std::string, std::string> tokens = WrongTokens();
  const size_t rounds = (1000 + tokens.size() - 1) / tokens.size();  // at least 1,000 wrong tokens
  tokens.emplace("no token", "");
  std::vector<std::string> kinds;
  for (const auto& [kind, token] : tokens) kinds.push_back(kind);
  ASSERT_TRUE(List(token_).ok());
  ExpectSameTimes(kinds, rounds, [&](const std::string& kind) {
    const std::string& token = tokens.at(kind);
    double milliseconds = 0;
    const grpc::Status status = List(token, &milliseconds);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << kind;
    EXPECT_THAT(status.error_message(),
                HasSubstr(token.empty() ? "requires a token" : "not one of this server"))
        << kind;
    return milliseconds;
  });
  EXPECT_TRUE(List(token_).ok()) << "wrong tokens lock nobody out";
}

// Raw clients call a service and reflection, each without a token and with a wrong one.
TEST_F(Refusals, RawClientsAreRefusedInTheSameTimeWithAndWithoutAToken) {
  const std::string wrong = RawConnection::Header("authorization", "Bearer " + std::string(64, 'a'));
  const std::map<std::string, std::string> tokens = {{"no token", ""}, {"a wrong token", wrong}};
  for (const char* method : {"/scalelab.v1.StudyService/ListStudies",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    SCOPED_TRACE(method);
    std::printf("%s\n", method);
    ExpectSameTimes({"no token", "a wrong token"}, 100, [&](const std::string& kind) {
      RawConnection raw(port_);
      const std::string call = RawConnection::Frame(RawConnection::kHeaders, 4, 1,
                                                    RawConnection::CallHeaders(method) + tokens.at(kind)) +
                               RawConnection::Frame(0, 1, 1, std::string(5, '\0'));
      const double start = Now();
      EXPECT_TRUE(raw.Send(call));
      const std::string answer = raw.ReceiveUntil("grpc-status", 20);
      const double milliseconds = 1000 * (Now() - start);
      EXPECT_THAT(answer, HasSubstr("grpc-status")) << kind;
      EXPECT_THAT(answer, Not(HasSubstr("confidential")));
      EXPECT_THAT(answer, Not(HasSubstr("scalelab.v1.RunService"))) << "the list of services";
      return milliseconds;
    });
  }
  EXPECT_TRUE(List(token_).ok());
}

TEST_F(Refusals, EachReasonIsOneSentenceWithWhatToDo) {
  EXPECT_THAT(List("").error_message(), HasSubstr("create one with `scalelab token create`"));
  for (const auto& [kind, token] : WrongTokens()) {
    const std::string message = List(token).error_message();
    EXPECT_TRUE(testing::Matches(testing::AnyOf(HasSubstr("create one with `scalelab token create`"),
                                                HasSubstr("log in again")))(message))
        << kind << ": " << message;
  }
}

}  // namespace
}  // namespace scalelab::e2e
