#include "server/web/web_server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/address.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/strand.hpp"
#include "server/identity/secrets.h"
#include "server/rpc/socket.h"
#include "server/rpc/web_metadata.h"

namespace scalelab::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr int kThreads = 2;

absl::StatusOr<asio::ip::tcp::endpoint> EndpointOf(const std::string& text) {
  if (const absl::Status status = CheckWebAddress(text); !status.ok()) return status;
  const absl::StatusOr<Address> address = ParseAddress(text);
  const std::string host = address->host == "localhost" ? "127.0.0.1"
                           : address->host == "[::1]"   ? "::1"
                                                        : address->host;
  error_code error;
  const asio::ip::address ip = asio::ip::make_address(host, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no address: ", error.message()));
  return asio::ip::tcp::endpoint(ip, static_cast<uint16_t>(address->port));
}

}  // namespace

// Counts open connections.
class ConnectionCounter : public std::enable_shared_from_this<ConnectionCounter> {
 public:
  explicit ConnectionCounter(int limit) : limit_(limit) {}
  // Returns an object that counts as a connection until it is destroyed; null if there are
  // too many connections.
  std::shared_ptr<void> Enter() {
    if (open_.fetch_add(1) >= limit_) {
      open_.fetch_sub(1);
      return nullptr;
    }
    return {this, [self = shared_from_this()](void*) { self->open_.fetch_sub(1); }};
  }

 private:
  const int limit_;
  std::atomic<int> open_ = 0;
};

struct WebServer::Impl {
  Impl(WebOptions options, SitePolicy policy)
      : limits(options.limits),
        logins(*options.identities, options.key, policy.encrypted()),
        bridge(std::make_unique<Bridge>(std::move(options.channel), Hmac(options.key, kWebSecretName))),
        router(std::move(policy), logins, *bridge),
        acceptor(asio::make_strand(io)),
        retry(acceptor.get_executor()),
        counter(std::make_shared<ConnectionCounter>(options.connections)) {}

  absl::Status Listen(const asio::ip::tcp::endpoint& endpoint) {
    error_code error;
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    return error ? absl::FailedPreconditionError(error.message()) : absl::OkStatus();
  }

  void Accept() {
    acceptor.async_accept(asio::make_strand(io), [this](error_code error, asio::ip::tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (!error) {
        if (auto release = counter->Enter())
          ServeConnection(std::move(socket), router, limits, std::move(release));
        return Accept();
      }
      // The process may have no free descriptors at present, so try again later.
      retry.expires_after(std::chrono::milliseconds(100));
      retry.async_wait([this](error_code stopped) {
        if (!stopped) Accept();
      });
    });
  }

  asio::io_context io{kThreads};
  const HttpLimits limits;
  Logins logins;
  std::unique_ptr<Bridge> bridge;
  Router router;
  asio::ip::tcp::acceptor acceptor;
  asio::steady_timer retry;
  const std::shared_ptr<ConnectionCounter> counter;
  std::string url;
  int port = 0;
  std::vector<std::thread> threads;
};

WebServer::WebServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

const std::string& WebServer::url() const { return impl_->url; }

int WebServer::port() const { return impl_->port; }

absl::StatusOr<std::unique_ptr<WebServer>> WebServer::Start(WebOptions options) {
  const auto endpoint = EndpointOf(options.address);
  if (!endpoint.ok()) return endpoint.status();
  absl::StatusOr<SitePolicy> policy = SitePolicy::For(options.url);
  if (!policy.ok()) return policy.status();
  const std::string address = options.address, url = options.url;
  Authenticator& identities = *options.identities;
  auto impl = std::make_unique<Impl>(std::move(options), *std::move(policy));
  if (const absl::Status status = impl->Listen(*endpoint); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("the dashboard cannot be served on ", address, ": ",
                                                      status.message(),
                                                      "; choose another address with --web"));
  }
  const auto local = impl->acceptor.local_endpoint();
  impl->port = local.port();
  const std::string host = local.address().is_v6() ? absl::StrCat("[", local.address().to_string(), "]")
                                                   : local.address().to_string();
  impl->url = url.empty() ? absl::StrCat("http://", host, ":", local.port(), "/") : url;
  identities.web_logins().SetUrl(impl->url);
  impl->Accept();
  for (int i = 0; i < kThreads; ++i) impl->threads.emplace_back([io = &impl->io] { io->run(); });
  return std::unique_ptr<WebServer>(new WebServer(std::move(impl)));
}

WebServer::~WebServer() {
  // Stop the calls first, because their callbacks post work to `io`.
  impl_->bridge->Stop();
  impl_->io.stop();
  for (std::thread& thread : impl_->threads) thread.join();
}

}  // namespace scalelab::server
