// Measures the cost of viewers of a live study in the dashboard: the effect of their streams of server-sent
// events and their repeated calls on the server and its other clients.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scalelab/v1/auth.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/bench/daemon.h"
#include "tests/bench/service_bench.h"
#include "tests/e2e/raw_connection.h"

namespace scalelab::bench {
namespace {

constexpr int kLogins = 50;  // a user may have 100 tokens; several viewers share a login
constexpr double kSubmitEverySeconds = 0.02;
constexpr double kTargetMs = 50;
constexpr std::chrono::seconds kCallLimit{60};

// A run that reports ten steps a second until it is cancelled.
constexpr char kSteps[] =
    R"(i=0; while :; do i=$((i+1)); echo "{\"time\":$i,\"event\":\"step\",\"step\":$i,\"metrics\":{\"train/loss\":1.5}}")"
    R"( >> "$SCALELAB_EVENTS"; sleep 0.1; done)";

struct Login {
  std::string cookie, key;
};

std::string PostText(const std::string& path, const std::string& body, const Login& login) {
  return absl::StrCat(
      "POST ", path,
      " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nCookie: ", login.cookie,
      "\r\nX-Scalelab-Key: ", login.key, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

bool SendAll(int fd, const std::string& bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// Logs a browser in to the dashboard on `port`.
std::optional<Login> LogIn(const Daemon& daemon, int port) {
  v1::CreateWebLoginResponse link;
  if (!v1::AuthService::NewStub(daemon.Connect())
           ->CreateWebLogin(Within(kCallLimit).get(), v1::CreateWebLoginRequest(), &link)
           .ok())
    return std::nullopt;
  const size_t code = link.url().rfind('=') + 1;
  const int fd = e2e::ConnectTcp(port);
  if (fd < 0) return std::nullopt;
  std::string reply;
  if (SendAll(fd, PostText("/login", nlohmann::json{{"code", link.url().substr(code)}}.dump(), {}))) {
    std::array<char, 4096> piece{};
    ssize_t got = 0;
    while (reply.find("\"}") == std::string::npos && (got = recv(fd, piece.data(), piece.size(), 0)) > 0)
      reply.append(piece.data(), static_cast<size_t>(got));
  }
  close(fd);
  const size_t cookie = reply.find("Set-Cookie: "), body = reply.find("\r\n\r\n");
  if (cookie == std::string::npos || body == std::string::npos) return std::nullopt;
  const auto json = nlohmann::json::parse(reply.substr(body + 4), nullptr, false);
  if (!json.is_object() || !json.contains("key")) return std::nullopt;
  const size_t begin = cookie + 12;
  return Login{reply.substr(begin, reply.find(';', begin) - begin), json["key"].get<std::string>()};
}

// What an open tab of a study's page calls again and again (server/web/assets).
struct Tab {
  const char* method;
  double pause;   // least number of seconds between an answer and the next call
  double factor;  // the pause is at least this number of times the duration of the call
  double extra;   // seconds that are added to the pause
};
constexpr std::array<Tab, 3> kTabs = {{
    {"ListRuns", 2, 0, 0},    // grid.mjs, if the state of a run changes all the time
    {"GetCurve", 5, 20, 1},   // curves.mjs
    {"GetCluster", 5, 0, 0},  // the tab Allocations of study.mjs
}};

// The open tabs of browsers that show a study: as many of each kind, with a connection each. One thread makes
// all calls.
class Pages {
 public:
  Pages(int port, const std::vector<Login>& logins, const std::string& study, int count) {
    const std::array<std::string, kTabs.size()> requests = {
        nlohmann::json{{"parent", study}, {"view", "STATES"}, {"page_size", 10'000}}.dump(),
        nlohmann::json{{"study", study}}.dump(), "{}"};
    const double now = e2e::Now();
    for (int i = 0; i < count; ++i) {
      const int fd = e2e::ConnectTcp(port);
      if (fd < 0) {
        ++failed_;
        break;
      }
      const size_t tab = static_cast<size_t>(i) % kTabs.size();
      sockets_.push_back({fd, POLLIN, 0});
      Page page;
      page.tab = tab;
      page.request = PostText(absl::StrCat("/api/", kTabs[tab].method), requests[tab],
                              logins[static_cast<size_t>(i) % logins.size()]);
      page.due = now + kTabs[tab].pause * i / count;
      pages_.push_back(std::move(page));
    }
    caller_ = std::thread([this] { Run(); });
  }
  ~Pages() {
    stop_ = true;
    caller_.join();
    for (const pollfd& connection : sockets_) {
      if (connection.fd >= 0) close(connection.fd);
    }
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  using Durations = std::array<std::vector<double>, kTabs.size()>;
  // Returns the durations in milliseconds of the calls that have been answered since the last call of this
  // function.
  Durations Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(durations_, {});
  }
  // Returns the number of calls that were refused or not answered.
  int failed() const { return failed_; }

 private:
  struct Page {
    size_t tab = 0;       // index in kTabs
    std::string request;  // with its headers
    double due = 0;       // time of the next call
    double sent = 0;      // time of the call in progress; 0 if there is none
    std::string reply;    // its bytes so far
  };

  void Run() {
    std::vector<char> piece(256 << 10);
    while (!stop_) {
      const double now = e2e::Now();
      for (size_t i = 0; i < pages_.size(); ++i) {
        Page& page = pages_[i];
        if (sockets_[i].fd < 0 || page.sent > 0 || page.due > now) continue;
        page.sent = now;
        if (!SendAll(sockets_[i].fd, page.request)) End(i);
      }
      if (poll(sockets_.data(), sockets_.size(), 5) <= 0) continue;
      for (size_t i = 0; i < pages_.size(); ++i) {
        if (sockets_[i].fd < 0 || sockets_[i].revents == 0) continue;
        const ssize_t got = recv(sockets_[i].fd, piece.data(), piece.size(), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0) {
          End(i);
          continue;
        }
        pages_[i].reply.append(piece.data(), static_cast<size_t>(got));
        if (Complete(pages_[i].reply)) Answered(pages_[i]);
      }
    }
  }

  static bool Complete(absl::string_view reply) {
    constexpr absl::string_view kLength = "\r\nContent-Length: ";
    const size_t body = reply.find("\r\n\r\n"), length = reply.find(kLength);
    if (body == reply.npos || length == reply.npos || length > body) return false;
    const size_t begin = length + kLength.size();
    size_t bytes = 0;
    return absl::SimpleAtoi(reply.substr(begin, reply.find('\r', begin) - begin), &bytes) &&
           reply.size() >= body + 4 + bytes;
  }

  void Answered(Page& page) {
    const Tab& tab = kTabs[page.tab];
    const double now = e2e::Now(), took = now - page.sent;
    if (absl::string_view(page.reply).substr(0, 12) == "HTTP/1.1 200") {
      const std::lock_guard lock(mutex_);
      durations_[page.tab].push_back(1e3 * took);
    } else {
      ++failed_;
    }
    page.due = now + std::max(tab.pause, tab.factor * took) + tab.extra;
    page.sent = 0;
    page.reply.clear();
  }

  void End(size_t page) {
    ++failed_;
    close(sockets_[page].fd);
    sockets_[page].fd = -1;
  }

  std::vector<Page> pages_;
  std::vector<pollfd> sockets_;  // of the pages, in the same order
  std::mutex mutex_;
  Durations durations_;  // guarded by mutex_
  std::atomic<int> failed_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread caller_;
};

// Browsers that show a study. One thread reads all streams.
class Viewers {
 public:
  Viewers(int port, const std::vector<Login>& logins, const std::string& study, int count) {
    const std::string body = nlohmann::json{{"name", study}}.dump();
    for (int i = 0; i < count; ++i) {
      const int fd = e2e::ConnectTcp(port);
      if (fd < 0) break;
      streams_.push_back({fd, POLLIN, 0});
      if (!SendAll(fd, PostText("/api/WatchStudy", body, logins[static_cast<size_t>(i) % logins.size()])))
        break;
    }
    messages_of_.resize(streams_.size());
    reader_ = std::thread([this] { Read(); });
  }
  ~Viewers() {
    stop_ = true;
    reader_.join();
    for (const pollfd& stream : streams_) {
      if (stream.fd >= 0) close(stream.fd);
    }
  }
  Viewers(const Viewers&) = delete;
  Viewers& operator=(const Viewers&) = delete;

  int64_t messages() const { return messages_; }
  int64_t bytes() const { return bytes_; }
  // Returns the number of open streams that have received a message.
  int live() const { return live_; }

 private:
  void Read() {
    std::vector<char> piece(256 << 10);
    while (!stop_) {
      if (poll(streams_.data(), streams_.size(), 50) <= 0) continue;
      for (size_t i = 0; i < streams_.size(); ++i) {
        if (streams_[i].fd < 0 || streams_[i].revents == 0) continue;
        const ssize_t got = recv(streams_[i].fd, piece.data(), piece.size(), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0) {
          if (messages_of_[i] > 0) --live_;
          close(streams_[i].fd);
          streams_[i].fd = -1;
          continue;
        }
        bytes_ += got;
        const absl::string_view text(piece.data(), static_cast<size_t>(got));
        int found = 0;  // a message that is split between two pieces is not counted
        for (size_t at = text.find("data: "); at != text.npos; at = text.find("data: ", at + 1)) ++found;
        if (messages_of_[i] == 0 && found > 0) ++live_;
        messages_of_[i] += found;
        messages_ += found;
      }
    }
  }

  std::vector<pollfd> streams_;
  std::vector<int64_t> messages_of_;
  std::atomic<int64_t> messages_ = 0, bytes_ = 0;
  std::atomic<int> live_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread reader_;
};

// Returns the processor time that a process has used, in seconds.
double CpuSeconds(pid_t pid) {
  const std::string stat = e2e::ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(stat.rfind(')') + 2), ' ');
  int64_t user = 0, system = 0;
  if (fields.size() < 13 || !absl::SimpleAtoi(fields[11], &user) || !absl::SimpleAtoi(fields[12], &system))
    return 0;
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Submits a study every 20 ms. Returns the sorted durations of successful submissions in milliseconds; counts
// the others in `failed`.
std::vector<double> Submit(const Daemon& daemon, double seconds, int* failed) {
  const auto stub = v1::StudyService::NewStub(daemon.Connect());
  v1::CreateStudyRequest request;
  *request.mutable_spec() = CommandStudy({"true"}, 1);
  std::vector<double> took;
  const double end = e2e::Now() + seconds;
  for (double next = e2e::Now(); next < end; next += kSubmitEverySeconds) {
    if (const double wait = next - e2e::Now(); wait > 0) e2e::Pause(wait);
    const double start = e2e::Now();
    v1::CreateStudyResponse response;
    if (stub->CreateStudy(Within(kCallLimit).get(), request, &response).ok())
      took.push_back(1e3 * (e2e::Now() - start));
    else
      ++*failed;
    next = std::max(next, e2e::Now() - kSubmitEverySeconds);  // a slow answer delays the next submit
  }
  std::ranges::sort(took);
  return took;
}

struct Phase {
  double cpu = 0, p50 = 0, p99 = 0;  // processor seconds per second, ms
};

// Measures while the viewers watch the study. `viewers` and `pages` are null if there are none.
Phase Measure(const Daemon& daemon, const Viewers* viewers, Pages* pages, int count, double seconds,
              std::vector<Figure>& figures, const Phase* before) {
  if (pages != nullptr) pages->Take();
  const int64_t messages = viewers == nullptr ? 0 : viewers->messages();
  const int64_t bytes = viewers == nullptr ? 0 : viewers->bytes();
  const double cpu = CpuSeconds(daemon.pid()), start = e2e::Now();
  int failed = 0;
  const std::vector<double> submits = Submit(daemon, seconds, &failed);
  const double passed = e2e::Now() - start;
  Phase phase;
  phase.cpu = (CpuSeconds(daemon.pid()) - cpu) / passed;
  if (!submits.empty()) {
    phase.p50 = submits[submits.size() / 2];
    phase.p99 = submits[submits.size() * 99 / 100];
  }
  const std::string prefix = absl::StrCat("viewers/", count, "/");
  const auto add = [&](absl::string_view name, double value, const char* unit, double without) {
    Figure figure{absl::StrCat(prefix, name), value, unit};
    if (before != nullptr && without > 0) {
      figure.against = "no viewers";
      figure.against_value = without;
      figure.ratio = value / without;
    }
    figures.push_back(figure);
  };
  add("cpu", phase.cpu, "s/s", before == nullptr ? 0 : before->cpu);
  add("submit_p50", phase.p50, "ms", before == nullptr ? 0 : before->p50);
  add("submit_p99", phase.p99, "ms", before == nullptr ? 0 : before->p99);
  figures.push_back(
      {prefix + "submit_p99_target", phase.p99, "ms", "target", kTargetMs, phase.p99 / kTargetMs});
  add("submit_max", submits.empty() ? 0 : submits.back(), "ms", 0);
  add("submits", static_cast<double>(submits.size()), "", 0);
  add("failed_submits", failed, "", 0);
  add("memory", daemon.Memory(), "MB", 0);
  if (viewers != nullptr) {
    add("live_streams", viewers->live(), "", 0);
    add("messages", static_cast<double>(viewers->messages() - messages) / passed, "1/s", 0);
    add("traffic", static_cast<double>(viewers->bytes() - bytes) / passed / 1e6, "MB/s", 0);
  }
  if (pages != nullptr) {
    Pages::Durations durations = pages->Take();
    for (size_t tab = 0; tab < kTabs.size(); ++tab) {
      std::vector<double>& took = durations[tab];
      std::ranges::sort(took);
      const std::string method = kTabs[tab].method;
      add(absl::StrCat(method, "_calls"), static_cast<double>(took.size()) / passed, "1/s", 0);
      add(absl::StrCat(method, "_p50"), took.empty() ? 0 : took[took.size() / 2], "ms", 0);
      add(absl::StrCat(method, "_p99"), took.empty() ? 0 : took[took.size() * 99 / 100], "ms", 0);
    }
    add("failed_calls", pages->failed(), "", 0);
  }
  return phase;
}

}  // namespace

std::vector<Figure> RunViewersBench(const BenchOptions& options) {
  const int port = e2e::FreeTcpPort();
  const Daemon daemon(options.directory, {"--local-slots", "2", "--web", absl::StrCat("127.0.0.1:", port)});
  v1::StudySpec live = CommandStudy({"sh", "-c", kSteps}, 2);
  live.set_allocation(v1::StudySpec::PER_RUN);
  (*live.mutable_fixed()->mutable_fields())["max_steps"].set_number_value(1e6);
  const std::string study = daemon.Submit(live);
  std::vector<Login> logins;
  for (int i = 0; i < std::min(kLogins, options.viewers); ++i) {
    const auto login = LogIn(daemon, port);
    if (!login) {
      std::fprintf(stderr, "scalelab-bench: no browser can log in to the dashboard on port %d\n", port);
      return {};
    }
    logins.push_back(*login);
  }
  const double seconds = 20 * options.scale;
  std::vector<Figure> figures;
  // While the study is live, a viewer receives messages continuously.
  {
    const Viewers one(port, logins, study, 1);
    if (!e2e::Eventually([&] { return one.messages() > 5; }, 60)) {
      std::fprintf(stderr, "scalelab-bench: the study does not run\n");
      return {};
    }
  }
  const Phase before = Measure(daemon, nullptr, nullptr, 0, seconds, figures, nullptr);
  {
    const Viewers viewers(port, logins, study, options.viewers);
    if (!e2e::Eventually([&] { return viewers.live() == options.viewers; }, 60)) {
      std::fprintf(stderr, "scalelab-bench: %d of %d streams are open\n", viewers.live(), options.viewers);
      return {};
    }
    Pages pages(port, logins, study, options.viewers);
    Measure(daemon, &viewers, &pages, options.viewers, seconds, figures, &before);
  }
  return figures;
}

}  // namespace scalelab::bench
