#include "server/notify/channels.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/utf8.h"

// The functions below replace those of libc in this program.

// A host with a private and a public address, in this order.
constexpr char kHost[] = "both.example";
constexpr char kPublicAddress[] = "203.0.113.1";

extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** result) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name == nullptr || std::string_view(name) != kHost) return real(name, service, hints, result);
  if (const int error = real("127.0.0.1", service, hints, result); error != 0) return error;
  addrinfo** end = result;
  while (*end != nullptr) end = &(*end)->ai_next;
  return real(kPublicAddress, service, hints, end);
}

// Connects to the same port of this machine if the address is the public one.
extern "C" int connect(int fd, const sockaddr* address, socklen_t size) {
  sockaddr_in local{};
  if (address->sa_family == AF_INET) {
    local = *reinterpret_cast<const sockaddr_in*>(address);
    if (local.sin_addr.s_addr == inet_addr(kPublicAddress)) {
      local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address = reinterpret_cast<const sockaddr*>(&local);
    }
  }
  return static_cast<int>(syscall(SYS_connect, fd, address, size));
}

namespace scalelab::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Answers one request on a loopback port with fixed bytes, and records it.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 4), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~OneAnswer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_, "/hook?x=1"); }
  int port() const { return port_; }
  // Valid after the delivery.
  const std::string& request() const { return request_; }

 private:
  void Serve() {
    const int fd = accept(listener_, nullptr, nullptr);
    if (fd < 0) return;
    char buffer[4096];
    // The request is complete when its body, a JSON object, is.
    while (request_.find("\r\n\r\n{") == std::string::npos || request_.back() != '}') {
      const ssize_t n = read(fd, buffer, sizeof buffer);
      if (n <= 0) break;
      request_.append(buffer, n);
    }
    (void)!send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
    close(fd);
  }
  const std::string answer_;
  std::string request_;
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

class ChannelsTest : public ::testing::Test {
 protected:
  ChannelsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "scalelab-notify-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    settings_.private_addresses = true;
  }
  ~ChannelsTest() override { std::filesystem::remove_all(directory_); }
  static db::NoticeRow Notice(const std::string& channel, const std::string& target) {
    db::NoticeRow notice;
    notice.key = "studies/7/100/end/200/" + channel;
    notice.channel = channel;
    notice.target = target;
    notice.payload =
        R"({"event":"end","time":"2026-11-23T07:00:00Z","study":"studies/7","display_name":"scan","owner":"ada",)"
        R"("state":"FAILED","runs":{"succeeded":3,"failed":1}})";
    return notice;
  }
  absl::Status Deliver(const db::NoticeRow& notice) const { return Channels(settings_).Deliver(notice); }
  absl::Status Post(const std::string& answer) {
    OneAnswer server(answer);
    return Deliver(Notice("webhook", server.url()));
  }
  // Writes an executable script that stores its input and arguments.
  std::string Script(const std::string& last_line) {
    const std::string path = directory_ + "/program";
    std::ofstream(path) << "#!/bin/sh\ncat > " << directory_ << "/input\necho \"$@\" > " << directory_
                        << "/arguments\necho \"$SCALELAB_NOTICE_ID\" > " << directory_ << "/id\n"
                        << last_line << "\n";
    chmod(path.c_str(), 0755);
    return path;
  }
  std::string File(const std::string& name) const {
    std::ifstream file(directory_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::string directory_;
  NotifySettings settings_;
};

TEST_F(ChannelsTest, AWebhookGetsThePayloadAndTheId) {
  std::string request;
  {
    OneAnswer server("HTTP/1.1 204 No Content\r\n\r\n");
    ASSERT_TRUE(Deliver(Notice("webhook", server.url())).ok());
    request = server.request();
  }
  EXPECT_THAT(request, StartsWith("POST /hook?x=1 HTTP/1.1\r\n"));
  EXPECT_THAT(request, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(request, HasSubstr("Idempotency-Key: studies/7/100/end/200/webhook\r\n"));
  EXPECT_THAT(request, HasSubstr("\r\n\r\n{\"event\":\"end\""));
}

TEST_F(ChannelsTest, ErrorsOfTheServerAreTemporaryAndRefusalsAreNot) {
  for (const char* answer :
       {"HTTP/1.1 500 x\r\n\r\n", "HTTP/1.1 503 x\r\n\r\n", "HTTP/1.1 429 x\r\n\r\n", ""})
    EXPECT_TRUE(absl::IsUnavailable(Post(answer))) << answer;
  for (const char* answer : {"HTTP/1.1 404 x\r\n\r\n", "HTTP/1.1 401 x\r\n\r\n", "no HTTP"})
    EXPECT_TRUE(absl::IsFailedPrecondition(Post(answer))) << answer;
}

TEST_F(ChannelsTest, ARedirectIsNotFollowed) {
  OneAnswer other("HTTP/1.1 200 OK\r\n\r\n");
  const absl::Status status = Post(absl::StrCat("HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:", other.port(),
                                                "/\r\nContent-Length: 0\r\n\r\n"));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("redirects (status 307)"));
  EXPECT_EQ(other.request(), "");
}

TEST_F(ChannelsTest, AnEndlessAnswerIsCutOff) {
  EXPECT_TRUE(Post("HTTP/1.1 200 OK\r\n\r\n" + std::string(1 << 20, 'x')).ok());
  EXPECT_FALSE(Post("HTTP/1.1 500 OK\r\n\r\n" + std::string(1 << 20, 'x')).ok());
}

TEST_F(ChannelsTest, PrivateAddressesAreRefusedUnlessTheConfigurationAllowsThem) {
  settings_.private_addresses = false;
  OneAnswer server("HTTP/1.1 200 OK\r\n\r\n");
  for (const std::string& url :
       {server.url(), absl::StrCat("http://localhost:", server.port()),
        absl::StrCat("http://0:", server.port()), absl::StrCat("http://[::ffff:127.0.0.1]:", server.port()),
        absl::StrCat("http://[::1]:", server.port()), absl::StrCat("http://2130706433:", server.port()),
        std::string("http://10.1.2.3/"), std::string("http://169.254.169.254/latest/meta-data/"),
        std::string("http://192.168.1.1/"), std::string("http://172.16.0.1/"),
        std::string("http://100.64.0.1/"), std::string("http://[fd00::1]/"),
        std::string("http://[2002:7f00:1::]/")}) {
    const absl::Status status = Deliver(Notice("webhook", url));
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << url << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("private address")) << url;
  }
  EXPECT_EQ(server.request(), "");
}

TEST_F(ChannelsTest, AHostThatAlsoHasAPublicAddressGetsTheNotificationThere) {
  settings_.private_addresses = false;
  std::string url, request;
  {
    OneAnswer server("HTTP/1.1 204 No Content\r\n\r\n");
    url = absl::StrCat("http://", kHost, ":", server.port(), "/hook");
    const absl::Status status = Deliver(Notice("webhook", url));
    EXPECT_TRUE(status.ok()) << status;
    request = server.request();
  }
  EXPECT_THAT(request, StartsWith("POST /hook HTTP/1.1\r\n"));
  // Nothing listens at the public address any more.
  const absl::Status later = Deliver(Notice("webhook", url));
  EXPECT_TRUE(absl::IsUnavailable(later)) << later;
}

TEST_F(ChannelsTest, OnlyHttpIsSpoken) {
  for (const char* url : {"file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1:70/"})
    EXPECT_TRUE(absl::IsFailedPrecondition(Deliver(Notice("webhook", url)))) << url;
}

TEST_F(ChannelsTest, AMailGoesToSendmail) {
  settings_.sendmail = Script("exit 0");
  settings_.from = "scalelab@uni.example";
  ASSERT_TRUE(Deliver(Notice("mail", "ada@uni.example")).ok());
  EXPECT_EQ(File("arguments"), "-i -f scalelab@uni.example -- ada@uni.example\n");
  const std::string mail = File("input");
  EXPECT_THAT(
      mail,
      StartsWith(
          "From: scalelab@uni.example\nTo: ada@uni.example\nSubject: [scalelab] studies/7 (scan) FAILED\n"));
  EXPECT_THAT(mail, HasSubstr("Message-ID: <studies.7.100.end.200.mail@scalelab>\n"));
  EXPECT_THAT(mail, HasSubstr("\n\nStudy studies/7 (scan) of ada: FAILED at 2026-11-23T07:00:00Z\n"));
  EXPECT_THAT(mail, HasSubstr("  failed: 1\n"));
}

TEST_F(ChannelsTest, LineBreaksCannotAddHeaders) {
  db::NoticeRow notice = Notice("mail", "ada@uni.example");
  notice.payload =
      R"({"event":"end","study":"studies/7","display_name":"x\r\nBcc: eve@evil.example","state":"FAILED"})";
  const std::string mail = MailText(notice, "", absl::UnixEpoch());
  EXPECT_THAT(mail, Not(HasSubstr("\nBcc:")));
  EXPECT_THAT(MailText({}, "", absl::UnixEpoch()), HasSubstr("Subject:")) << "a payload that is not JSON";
}

TEST_F(ChannelsTest, AFailureOfSendmailIsTemporaryAndHasItsMessage) {
  settings_.sendmail = Script("echo 'queue full' >&2; exit 75");
  const absl::Status status = Deliver(Notice("mail", "ada@uni.example"));
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("status 75: queue full"));
  // The message is cut inside a character, and is Latin-1.
  for (const char* character : {"\\303\\251", "\\351"}) {
    settings_.sendmail = Script(
        absl::StrCat("i=0; while [ $i -lt 400 ]; do printf '", character, "' >&2; i=$((i+1)); done; exit 1"));
    const std::string message(Deliver(Notice("mail", "ada@uni.example")).message());
    EXPECT_EQ(ValidUtf8(message), message);
    EXPECT_LE(message.size(), 300u);
    EXPECT_GT(message.size(), 290u);
  }
  settings_.sendmail = directory_ + "/missing";
  EXPECT_TRUE(absl::IsUnavailable(Deliver(Notice("mail", "ada@uni.example"))));
}

TEST_F(ChannelsTest, ACommandGetsThePayloadAndOnlyThoseOfTheConfigurationRun) {
  settings_.commands["chat"] = {Script("exit 0"), "--room", "$HOME; id"};
  ASSERT_TRUE(Deliver(Notice("command", "chat")).ok());
  EXPECT_EQ(File("arguments"), "--room $HOME; id\n") << "no shell";
  EXPECT_THAT(File("input"), StartsWith("{\"event\":\"end\""));
  EXPECT_EQ(File("id"), "studies/7/100/end/200/command\n");
  EXPECT_TRUE(absl::IsFailedPrecondition(Deliver(Notice("command", "/bin/sh"))));
  EXPECT_FALSE(Deliver(Notice("pigeon", "x")).ok());
}

}  // namespace
}  // namespace scalelab::server
