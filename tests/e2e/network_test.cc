// Tests which sockets scalelabd opens by default, the webhooks that it sends, and its notifications to
// systemd.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/service.h"
#include "tests/fakes/notify_socket.h"

namespace scalelab::e2e {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSubsetOf;
using testing::IsSupersetOf;
using testing::SizeIs;
using testing::StartsWith;

// Returns the inodes of all open sockets of a process.
std::set<std::string> SocketsOf(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code gone;
  for (const auto& fd : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), gone)) {
    const std::string target = std::filesystem::read_symlink(fd, gone).string();
    if (absl::StartsWith(target, "socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// Returns the addresses on which a process accepts connections or packets, for example "tcp
// 0100007F:1F90", "unix /run/x.sock".
std::vector<std::string> ListeningOn(pid_t pid) {
  const std::set<std::string> own = SocketsOf(pid);
  std::vector<std::string> found;
  for (const std::string protocol : {"tcp", "tcp6", "udp", "udp6", "udplite", "raw", "raw6"}) {
    for (const auto line : absl::StrSplit(ReadFile("/proc/net/" + protocol), '\n')) {
      // The columns are: sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode.
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (words.size() < 10 || !own.contains(words[9])) continue;
      const bool listens = !absl::StartsWith(protocol, "tcp") || words[3] == "0A";
      if (listens) found.push_back(absl::StrCat(protocol, " ", words[1]));
    }
  }
  for (const auto line : absl::StrSplit(ReadFile("/proc/net/unix"), '\n')) {
    // The columns are: Num RefCount Protocol Flags Type St Inode Path. The flag 00010000 means that the
    // socket accepts connections.
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 7 || !own.contains(words[6]) || words[3] != "00010000") continue;
    found.push_back(absl::StrCat("unix ", words.size() > 7 ? words[7] : ""));
  }
  return found;
}

constexpr char kLong[] = "study: long\nfixed: {model: resnet8, dataset: synthetic, epochs: 1000, ranks: 1}\n";

TEST(Network, ByDefaultNothingButTheUnixSocketIsOpen) {
  Service service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const std::string socket = absl::StrCat("unix ", service.data(), "/scalelab.sock");
  EXPECT_THAT(ListeningOn(service.daemon()->pid()), ElementsAre(socket));
  service.WaitUntilTraining(service.Submit(kLong));
  EXPECT_THAT(ListeningOn(service.daemon()->pid()), ElementsAre(socket)) << "while a run trains";
}

// Returns "PROGRAM ADDRESS" for each address on which a process of the service other than scalelabd accepts connections or packets,
// without the port.
std::set<std::string> ListeningInRun(const Service& service) {
  std::set<std::string> found;
  for (const pid_t pid : service.Processes()) {
    const std::string command = CommandLine(pid);
    const std::string program = std::filesystem::path(command.substr(0, command.find(' '))).filename();
    for (const std::string& address : ListeningOn(pid))
      found.insert(absl::StrCat(program, " ", address.substr(0, address.find(':'))));
  }
  return found;
}

// docs/operators/users.md has the table of these addresses.
TEST(Network, RanksListenOnTheLoopbackInterfaceAndMpirunOnAllInterfaces) {
  const std::string ranks = "scalelab-trainer tcp 0100007F";  // 127.0.0.1
  Service service({"--local-slots", "2"});
  ASSERT_EQ(service.Start(), "");
  for (const char* backend : {"gloo", "mpi"}) {
    const std::string study = service.Submit(absl::StrCat(
        "study: ranks\nfixed: {model: resnet8, dataset: synthetic, epochs: 1000, ranks: 2, backend: ",
        backend, "}\n"));
    ASSERT_NE(service.WaitUntilTraining(study), "") << backend;
    const std::set<std::string> listening = ListeningInRun(service);
    if (backend == std::string("gloo")) {
      EXPECT_THAT(listening, ElementsAre(ranks));
    } else {
      // PMIx uses the loopback interface. Open MPI's out-of-band messages use IPv4, and IPv6 where the machine has it.
      const std::set<std::string> known = {ranks, "mpirun tcp 0100007F", "mpirun tcp 00000000",
                                           "mpirun tcp6 00000000000000000000000000000000"};
      EXPECT_THAT(listening, IsSubsetOf(known));
      EXPECT_THAT(listening, IsSupersetOf({ranks, std::string("mpirun tcp 0100007F")}));
    }
    EXPECT_THAT(ListeningOn(service.daemon()->pid()), SizeIs(1)) << backend;
    ASSERT_EQ(service.Run({"study", "cancel", study}).code, 0);
    ASSERT_TRUE(Eventually([&] { return service.Ranks().empty(); })) << backend;
  }
}

TEST(Network, AnAddressThatIsAskedForIsFoundByThisTest) {
  Service service({"--listen", "127.0.0.1:0", "--insecure", "true"});
  ASSERT_EQ(service.Start(), "");
  EXPECT_THAT(ListeningOn(service.daemon()->pid()), testing::Contains(testing::StartsWith("tcp 0100007F:")));
}

// Answers the first requests with status 503, and later ones with 200.
class Receiver {
 public:
  explicit Receiver(int failures)
      : failures_(failures), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Receiver() {
    shutdown(listener_, SHUT_RDWR);  // ends accept
    thread_.join();
    close(listener_);
  }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_, "/hook"); }
  std::vector<std::string> refused() const {
    const std::lock_guard lock(mutex_);
    return refused_;
  }
  std::vector<std::string> accepted() const {
    const std::lock_guard lock(mutex_);
    return accepted_;
  }

 private:
  void Serve() {
    for (int fd = accept(listener_, nullptr, nullptr); fd >= 0; fd = accept(listener_, nullptr, nullptr)) {
      const std::string body = ReadBody(fd);
      bool refuses = false;
      {
        const std::lock_guard lock(mutex_);
        refuses = static_cast<int>(refused_.size()) < failures_;
        (refuses ? refused_ : accepted_).push_back(body);
      }
      const std::string answer = absl::StrCat("HTTP/1.1 ", refuses ? "503 Unavailable" : "200 OK",
                                              "\r\nContent-Length: 0\r\n", "Connection: close\r\n\r\n");
      EXPECT_EQ(send(fd, answer.data(), answer.size(), MSG_NOSIGNAL), static_cast<ssize_t>(answer.size()));
      close(fd);
    }
  }
  static std::string ReadBody(int fd) {
    std::string request;
    char piece[4096];
    size_t end = std::string::npos, length = 0;
    while (end == std::string::npos || request.size() < end + 4 + length) {
      const ssize_t got = recv(fd, piece, sizeof piece, 0);
      if (got <= 0) break;
      request.append(piece, static_cast<size_t>(got));
      end = request.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      for (const auto line : absl::StrSplit(request.substr(0, end), "\r\n")) {
        const std::vector<std::string> header = absl::StrSplit(line, absl::MaxSplits(": ", 1));
        const bool names_length = header.size() == 2 && absl::AsciiStrToLower(header[0]) == "content-length";
        EXPECT_TRUE(!names_length || absl::SimpleAtoi(header[1], &length));
      }
    }
    return end == std::string::npos ? "" : request.substr(end + 4);
  }

  const int failures_, listener_;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> refused_, accepted_;
  std::thread thread_;
};

class ServiceWithHooks : public Service {
 public:
  ServiceWithHooks() : Service({"--local-slots", "1"}) {
    AddFlags({"--config", File("scalelabd.yaml", "notify: {private_addresses: true}\n")});
  }
};

// Takes a minute and a half: the times between the attempts are 30 and 60 s.
TEST(Network, AWebhookThatFailsTwiceGetsTheNotificationOnce) {
  Receiver receiver(2);
  ServiceWithHooks service;
  ASSERT_EQ(service.Start(), "");
  const std::string study =
      service.Submit(absl::StrCat(kLong, "notify: {on: [end], webhook: \"", receiver.url(), "\"}\n"));
  ASSERT_EQ(service.Run({"study", "cancel", study}).code, 0);
  ASSERT_TRUE(Eventually([&] { return receiver.refused().size() == 1; })) << service.log();
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(service.Run({"study", "explain", study}).out,
                             "a notification (webhook) is not sent yet: the server answers with status 503");
  }));
  ASSERT_TRUE(Eventually([&] { return !receiver.accepted().empty(); }, 150)) << service.log();
  EXPECT_TRUE(Eventually([&] {
    return !absl::StrContains(service.Run({"study", "explain", study}).out, "notification");
  }));
  EXPECT_EQ(service.Stop(), 0);  // afterwards nothing is sent

  ASSERT_THAT(receiver.accepted(), SizeIs(1));
  ASSERT_THAT(receiver.refused(), SizeIs(2));
  const auto payload = nlohmann::json::parse(receiver.accepted()[0]);
  EXPECT_EQ(payload["study"], study);
  EXPECT_EQ(payload["event"], "end");
  EXPECT_EQ(payload["state"], "CANCELLED");
  EXPECT_EQ(receiver.refused()[0], receiver.accepted()[0]) << "the id and the content are the same each time";
}

// Returns whether a program listens on a Unix socket.
bool Listens(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
  close(fd);
  return connected;
}

TEST(Systemd, IsNotifiedWhenCallsAreAnswered) {
  NotifySocket systemd;
  Service service;
  Background daemon({Program("scalelabd"), "--data", service.data()}, service.dir() + "/scalelabd.log",
                    {{"NOTIFY_SOCKET", systemd.address()}});
  ASSERT_EQ(systemd.Next(), absl::StrCat("READY=1\nSTATUS=serving ", service.socket())) << service.log();
  EXPECT_TRUE(Listens(service.data() + "/scalelab.sock")) << "at the time of the notification";
  EXPECT_EQ(service.Run({"study", "list"}, 30).code, 0) << service.log();
}

TEST(Systemd, IsNotifiedOfTheReasonIfTheStartFails) {
  NotifySocket systemd;
  Service service;
  const auto start = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> argv = {Program("scalelabd"), "--data", service.data()};
    argv.insert(argv.end(), flags.begin(), flags.end());
    return RunProgram(argv, {{"NOTIFY_SOCKET", systemd.address()}}).code;
  };
  const std::string config = service.File("scalelabd.yaml", "nonsense: 1\n");
  EXPECT_EQ(start({"--config", config}), 2);
  EXPECT_EQ(systemd.Arrived(), absl::StrCat("STATUS=", config, ":1:1: unknown key 'nonsense'"));
  service.File("data", "");  // no directory
  EXPECT_EQ(start({}), 1);
  const std::string notification = systemd.Arrived();
  EXPECT_THAT(notification, StartsWith("STATUS="));
  EXPECT_THAT(notification, HasSubstr(service.data()));
  EXPECT_EQ(systemd.Arrived(), "");
}

TEST(Systemd, IsNotifiedOfReloadsAndTheEndButNotByProcessesOfRuns) {
  NotifySocket systemd(NotifySocket::Kind::kAbstract);
  Service service({"--local-slots", "1"}, {{"NOTIFY_SOCKET", systemd.address()}});
  ASSERT_EQ(service.Start(), "");
  ASSERT_THAT(systemd.Next(), StartsWith("READY=1\n"));
  service.daemon()->Signal(SIGHUP);
  EXPECT_THAT(systemd.Next(), StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_THAT(systemd.Next(), StartsWith("READY=1\n"));
  EXPECT_THAT(service.log(), HasSubstr("the configuration was read again"));

  ASSERT_NE(service.WaitUntilTraining(service.Submit(kLong)), "");
  // For scalelabd itself the kernel shows the environment with which it was started. A new process has the
  // environment of its parent until it executes its program.
  const std::vector<pid_t> only_the_daemon = {service.daemon()->pid()};
  const auto processes = [&] {
    return ProcessesInEnvironment(absl::StrCat("NOTIFY_SOCKET=", systemd.address()));
  };
  EXPECT_TRUE(Eventually([&] { return processes() == only_the_daemon; }))
      << "processes with the variable: " << testing::PrintToString(processes());
  EXPECT_EQ(service.Stop(), 0);
  EXPECT_EQ(systemd.Arrived(), "STOPPING=1");
  EXPECT_EQ(systemd.Arrived(), "");
}

}  // namespace
}  // namespace scalelab::e2e
