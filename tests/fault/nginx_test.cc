// Floods against the shipped front of nginx, without a token. The memory of scalelabd and the times of its calls stay as they
// are.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "scalelab/v1/worker.grpc.pb.h"
#include "tests/e2e/raw_connection.h"
#include "tests/e2e/service.h"
#include "tls/certificate.h"
#include "tls/credentials.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;

constexpr char kNginx[] = "/usr/sbin/nginx";
constexpr int64_t kFewBytes = int64_t{20} << 20;

std::string Account() { return geteuid() == 0 ? "root" : absl::StrCat(getenv("USER")); }

class NginxTest : public testing::Test {
 protected:
  NginxTest() : service_({"--local-slots", "1", "--proxies", Account()}) {}

  void SetUp() override {
    if (access(kNginx, X_OK) != 0) GTEST_SKIP() << "nginx is not installed";
    ASSERT_EQ(service_.Start(), "");
    token_ = std::string(absl::StripAsciiWhitespace(ReadFile(service_.data() + "/client.token")));
    StartNginx();
  }

  // Starts nginx with the shipped file. Only paths and the port are replaced.
  void StartNginx() {
    const std::string directory = service_.dir() + "/nginx";
    std::filesystem::create_directories(directory);
    const auto pair = tls::MakeKeyPair({"scalelab", "localhost"});
    ASSERT_TRUE(pair.ok());
    WriteFile(directory + "/front.crt", pair->certificate);
    WriteFile(directory + "/front.key", pair->key);
    port_ = FreeTcpPort();
    std::string front = ReadFile(absl::StrCat(SCALELAB_SOURCE_DIR, "/deploy/nginx/scalelab.conf"));
    const auto replace = [&](const std::string& what, const std::string& by) {
      EXPECT_THAT(front, HasSubstr(what));
      front = absl::StrReplaceAll(front, {{what, by}});
    };
    replace("unix:/run/scalelab/scalelab.sock", service_.socket());
    replace("/etc/scalelab/front", directory + "/front");
    replace("listen 7601 ", absl::StrCat("listen 127.0.0.1:", port_, " "));
    WriteFile(directory + "/scalelab.conf", front);
    std::string temporary;
    for (const char* kind : {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"})
      absl::StrAppend(&temporary, "  ", kind, "_temp_path ", directory, "/", kind, ";\n");
    WriteFile(directory + "/nginx.conf",
              absl::StrCat(geteuid() == 0 ? "user root;\n" : "", "daemon off;\npid ", directory,
                           "/pid;\nerror_log ", directory,
                           "/error.log crit;\nevents {}\nhttp {\n  access_log off;\n", temporary,
                           "  include ", directory, "/scalelab.conf;\n}\n"));
    nginx_ = std::make_unique<Background>(
        std::vector<std::string>{kNginx, "-p", directory, "-e", directory + "/start.log", "-c",
                                 directory + "/nginx.conf"},
        directory + "/log");
    certificate_ = pair->certificate;
    ASSERT_TRUE(Eventually([&] { return List(*Front(), token_).ok(); }))
        << ReadFile(directory + "/start.log") << ReadFile(directory + "/log")
        << ReadFile(directory + "/error.log");
  }
  void TearDown() override {
    if (nginx_ == nullptr) return;
    nginx_->Signal(SIGTERM);
    nginx_->Wait();
  }

  // Connects through the front.
  std::shared_ptr<grpc::Channel> FrontChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto credentials = *tls::Trust(certificate_, arguments);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port_), credentials, arguments);
  }
  std::unique_ptr<v1::StudyService::Stub> Front() const { return v1::StudyService::NewStub(FrontChannel()); }
  static std::unique_ptr<grpc::ClientContext> Context(const std::string& token) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
    return context;
  }
  static grpc::Status List(v1::StudyService::Stub& stub, const std::string& token) {
    v1::ListStudiesResponse studies;
    return stub.ListStudies(Context(token).get(), {}, &studies);
  }
  // Runs the flood and checks the memory of scalelabd. Prints the times of calls meanwhile.
  template <typename Function>
  void Withstands(const char* name, const Function& flood) {
    const int64_t before = ResidentBytes(service_.daemon()->pid());
    std::atomic<bool> stop = false;
    int64_t most = before;
    std::vector<double> milliseconds;
    std::thread caller([&] {
      const auto stub = v1::StudyService::NewStub(
          grpc::CreateChannel(service_.socket(), grpc::InsecureChannelCredentials()));
      while (!stop) {
        const double start = Now();
        EXPECT_TRUE(List(*stub, token_).ok());
        milliseconds.push_back(1000 * (Now() - start));
        most = std::max(most, ResidentBytes(service_.daemon()->pid()));
        Pause(0.01);
      }
    });
    flood(port_, 8, [] {});
    stop = true;
    caller.join();
    std::sort(milliseconds.begin(), milliseconds.end());
    std::printf("%s: memory of scalelabd +%.1f MB; %zu calls, p50 %.1f ms, p99 %.1f ms\n", name,
                static_cast<double>(most - before) / 1e6, milliseconds.size(),
                milliseconds[milliseconds.size() / 2], milliseconds[milliseconds.size() * 99 / 100]);
    EXPECT_LT(most - before, kFewBytes);
    EXPECT_TRUE(Eventually([&] { return List(*Front(), token_).ok(); }));
  }

  Service service_;
  std::string token_, certificate_;
  int port_ = 0;
  std::unique_ptr<Background> nginx_;
};

TEST_F(NginxTest, CallersWithATokenAreServedAndOthersAreNot) {
  const auto front = Front();
  v1::CreateStudyRequest create;
  create.mutable_spec()->set_study("s");
  auto& fixed = *create.mutable_spec()->mutable_fixed()->mutable_fields();
  fixed["engine"].set_string_value("custom");
  fixed["ranks"].set_number_value(1);
  fixed["max_steps"].set_number_value(1);
  fixed["command"].mutable_list_value()->add_values()->set_string_value("true");
  v1::CreateStudyResponse created;
  const grpc::Status submitted = front->CreateStudy(Context(token_).get(), create, &created);
  ASSERT_TRUE(submitted.ok()) << submitted.error_message();
  // A stream that ends with the study.
  v1::WatchStudyRequest watch;
  watch.set_name(created.study().name());
  const auto context = Context(token_);
  const auto reader = front->WatchStudy(context.get(), watch);
  v1::WatchStudyResponse state;
  EXPECT_TRUE(reader->Read(&state));
  while (reader->Read(&state)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(List(*front, "").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(List(*front, "wrong").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  v1::SynchronizeResponse synchronized;
  EXPECT_EQ(v1::WorkerService::NewStub(FrontChannel())
                ->Synchronize(Context(token_).get(), {}, &synchronized)
                .error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(NginxTest, WithstandsEndlessHeaders) { Withstands("CONTINUATION flood", FloodWithHeaders); }
TEST_F(NginxTest, WithstandsEndlessResetCalls) { Withstands("rapid reset", FloodWithResets); }
TEST_F(NginxTest, WithstandsEndlessCalls) { Withstands("calls without an end", FloodWithCalls); }

}  // namespace
}  // namespace scalelab::e2e
