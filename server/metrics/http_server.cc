#include "server/metrics/http_server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/rpc/socket.h"
#include "server/time/clock.h"

namespace scalelab::server {
namespace {

constexpr unsigned kConnections = 16;
constexpr unsigned kIdleSeconds = 10;
constexpr size_t kRequestBytes = 16 << 10;
constexpr absl::Duration kLongest = absl::Seconds(30);

// Fills in the address of a loopback host. Returns false if the host is another one.
bool Loopback(const Address& address, sockaddr_storage* storage) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(storage);
  const std::string host = address.host == "localhost" ? "127.0.0.1" : address.host;
  if (host == "[::1]") {
    v6->sin6_family = AF_INET6;
    v6->sin6_addr = in6addr_loopback;
    v6->sin6_port = htons(static_cast<uint16_t>(address.port));
    return true;
  }
  v4->sin_family = AF_INET;
  v4->sin_port = htons(static_cast<uint16_t>(address.port));
  return inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1 && absl::StartsWith(host, "127.");
}

absl::StatusOr<Address> ParseLoopback(const std::string& text) {
  absl::StatusOr<Address> address = ParseAddress(text);
  if (!address.ok()) return address.status();
  sockaddr_storage unused{};
  if (address->unix_path.empty() && Loopback(*address, &unused)) return address;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not a loopback address; metrics have no authentication, so write 127.0.0.1:PORT"));
}

MHD_Result Respond(MHD_Connection* connection, unsigned status, const std::string& text) {
  MHD_Response* response =
      MHD_create_response_from_buffer(text.size(), const_cast<char*>(text.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
  MHD_add_response_header(response, "Connection", "close");
  const MHD_Result queued = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return queued;
}

}  // namespace

struct HttpServer::Impl {
  ~Impl() {
    if (daemon != nullptr) MHD_stop_daemon(daemon);
  }

  MHD_Result Answer(MHD_Connection* connection, const std::string& url, const std::string& method) const {
    if (method != "GET" && method != "HEAD")
      return Respond(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "use GET\n");
    if (url == "/metrics") return Respond(connection, MHD_HTTP_OK, handlers.metrics());
    if (url != "/healthz")
      return Respond(connection, MHD_HTTP_NOT_FOUND, "there are /metrics and /healthz\n");
    const std::string problem = handlers.problem();
    if (problem.empty()) return Respond(connection, MHD_HTTP_OK, "ok\n");
    return Respond(connection, MHD_HTTP_SERVICE_UNAVAILABLE, problem + "\n");
  }
  void Changed(MHD_Connection* connection, MHD_ConnectionNotificationCode change) {
    const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == nullptr) return;
    absl::MutexLock lock(&mutex);
    if (change == MHD_CONNECTION_NOTIFY_STARTED)
      opened[info->connect_fd] = Clock::System().Steady();
    else
      opened.erase(info->connect_fd);  // forget the connection before its descriptor is closed
  }

  HttpHandlers handlers;
  MHD_Daemon* daemon = nullptr;
  int port = 0;
  absl::Mutex mutex;
  std::map<int, absl::Duration> opened ABSL_GUARDED_BY(mutex);  // Clock::Steady, by descriptor
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->port; }

absl::Status CheckLoopback(const std::string& address) { return ParseLoopback(address).status(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& text,
                                                              HttpHandlers handlers) {
  const absl::StatusOr<Address> address = ParseLoopback(text);
  if (!address.ok()) return address.status();
  sockaddr_storage storage{};
  Loopback(*address, &storage);
  auto impl = std::make_unique<Impl>();
  impl->handlers = std::move(handlers);
  const MHD_AccessHandlerCallback answer = [](void* self, MHD_Connection* connection, const char* url,
                                              const char* method, const char*, const char*,
                                              size_t* upload_size, void**) {
    *upload_size = 0;
    return static_cast<Impl*>(self)->Answer(connection, url, method);
  };
  const MHD_NotifyConnectionCallback changed = [](void* self, MHD_Connection* connection, void**,
                                                  MHD_ConnectionNotificationCode change) {
    static_cast<Impl*>(self)->Changed(connection, change);
  };
  unsigned flags = MHD_USE_AUTO_INTERNAL_THREAD;
  if (storage.ss_family == AF_INET6) flags |= MHD_USE_IPv6;
  impl->daemon =
      MHD_start_daemon(flags, 0, nullptr, nullptr, answer, impl.get(), MHD_OPTION_SOCK_ADDR,
                       reinterpret_cast<sockaddr*>(&storage), MHD_OPTION_CONNECTION_LIMIT, kConnections,
                       MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                       kRequestBytes, MHD_OPTION_NOTIFY_CONNECTION, changed, impl.get(), MHD_OPTION_END);
  if (impl->daemon == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot serve metrics on ", text, ": ", std::strerror(errno),
                     "; stop the program that uses the port, or choose another"));
  }
  const MHD_DaemonInfo* info = MHD_get_daemon_info(impl->daemon, MHD_DAEMON_INFO_BIND_PORT);
  impl->port = info == nullptr ? address->port : info->port;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

void HttpServer::CloseOld() {
  const absl::Duration oldest = Clock::System().Steady() - kLongest;
  absl::MutexLock lock(&impl_->mutex);
  for (const auto& [fd, since] : impl_->opened) {
    if (since < oldest) shutdown(fd, SHUT_RDWR);  // then the server's thread closes the connection
  }
}

}  // namespace scalelab::server
