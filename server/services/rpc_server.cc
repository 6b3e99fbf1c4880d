#include "server/services/rpc_server.h"

#include <unistd.h>

#include <atomic>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/listener.h"
#include "server/rpc/socket.h"
#include "server/rpc/tls_relay.h"
#include "server/services/endpoint.h"
#include "server/services/watchdog.h"
#include "server/time/clock.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

// Returns the fingerprint of the certificate for TCP; empty without TLS. Without a certificate that can be read, the
// server does not start.
std::string FingerprintOf(const std::optional<tls::KeyPair>& identity) {
  return identity.has_value() ? tls::Fingerprint(identity->certificate).value_or("none") : "";
}

// Time that Shutdown waits for threads of the pools after all calls have ended. A thread that takes
// longer is blocked.
constexpr absl::Duration kPoolGrace = absl::Seconds(2);

class Impl final : public RpcServer {
 public:
  Impl(const RpcServerOptions& options, Coordinator& coordinator, db::Store& store,
       const Scheduler& scheduler, Frameworks& frameworks, const Auth& auth)
      : parts_(std::make_unique<Parts>(options, coordinator, store, scheduler, frameworks, auth)) {}

  ~Impl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start(const std::vector<Address>& addresses, const RpcServerOptions& options) {
    if (absl::Status started = StartRelay(options.tls); !started.ok()) return started;
    absl::StatusOr<std::unique_ptr<Listener>> listener =
        Listener::Open(addresses, parts_->connections, options.socket_mode);
    if (!listener.ok()) return listener.status();
    if (auto s = parts_->identities.Start(); !s.ok()) return s;
    for (Endpoint* endpoint : parts_->endpoints()) {
      if (auto s = endpoint->Start(); !s.ok()) return s;
    }
    listener_ = *std::move(listener);
    addresses_ = listener_->addresses();
    listener_->Start([this](int fd, std::optional<uid_t> uid) {
      if (!uid.has_value() && relay_ != nullptr)
        relay_->Add(fd);
      else
        Take(fd, uid);
    });
    const auto set_health = [this](const std::string& problem) {
      for (Endpoint* endpoint : parts_->endpoints()) endpoint->SetHealthy(problem.empty());
      absl::MutexLock lock(&mutex_);
      problem_ = problem;
    };
    watchdog_ = std::make_unique<Watchdog>(parts_->context.coordinator, options.stuck_after, set_health);
    return absl::OkStatus();
  }

  const std::vector<std::string>& addresses() const override { return addresses_; }

  std::string problem() const override {
    absl::MutexLock lock(&mutex_);
    return problem_;
  }
  int connections() const override { return parts_ == nullptr ? 0 : parts_->connections.open(); }
  std::vector<std::pair<std::string, size_t>> queued_calls() const override {
    if (parts_ == nullptr) return {};
    const CallPools& pools = parts_->pools;
    return {{"logs", pools.logs.waiting()},
            {"files", pools.files.waiting()},
            {"reads", pools.reads.waiting()},
            {"heavy", pools.heavy.waiting()},
            {"connections", pools.connections.waiting()},
            {"logins", pools.logins.waiting()}};
  }

  std::shared_ptr<grpc::Channel> InProcessChannel() override { return parts_->tcp.InProcessChannel(); }
  Authenticator& identities() override { return parts_->identities; }

  void SetRoles(const RoleLists& lists) override {
    if (parts_ != nullptr) parts_->identities.users().SetRoles(lists);
  }

  bool Shutdown(absl::Duration grace) override {
    if (parts_ == nullptr) return ended_;
    watchdog_.reset();
    listener_.reset();
    const absl::Duration deadline = Clock::System().Steady() + grace;
    for (Endpoint* endpoint : parts_->endpoints()) endpoint->Shutdown(deadline);
    relay_.reset();
    ended_ = parts_->pools.Stop(kPoolGrace);
    parts_->identities.audit().Stop();
    // A blocked thread may continue at any time, so never destroy the objects that it may use.
    if (!ended_) (void)parts_.release();
    parts_.reset();
    return ended_;
  }

 private:
  absl::Status StartRelay(const std::optional<tls::KeyPair>& identity) {
    if (!identity.has_value()) return absl::OkStatus();
    auto relay = TlsRelay::Start(*identity, [this](int plain, int tcp) {
      parts_->connections.SetPlain(plain, tcp);
      Take(plain, std::nullopt);
    });
    if (!relay.ok()) return relay.status();
    relay_ = *std::move(relay);
    return absl::OkStatus();
  }

  // Passes a connection to gRPC on a thread of a pool. `uid` is the account of the peer of a Unix socket.
  void Take(int fd, std::optional<uid_t> uid) {
    // Looking up a name may block. Half of the threads remain for TCP connections.
    Subject subject;
    if (uid.has_value()) subject.filesystem = "user directory";
    parts_->pools.connections.Run(
        [fd, uid, parts = parts_.get()](absl::Status status) {
          if (status.ok() && uid.has_value()) status = SetUser(*parts, fd, *uid);
          if (!status.ok()) {
            close(fd);
            return;
          }
          (uid.has_value() ? parts->local : parts->tcp).Take(fd);
        },
        std::move(subject));
  }

  // The objects that threads of the pools may use.
  struct Parts {
    Parts(const RpcServerOptions& options, Coordinator& coordinator, db::Store& store,
          const Scheduler& scheduler, Frameworks& frameworks, const Auth& auth)
        : connections(options.connections),
          identities(options.identity, auth.client_token(), auth.key(), store),
          munge(auth.SecretFor("munge"), FingerprintOf(options.tls), options.decode_munge),
          watches(coordinator, pools.reads,
                  [&store](int64_t id, v1::Study* study) { return ReadStudy(store, id, study); }),
          context{coordinator,
                  store,
                  pools,
                  watches,
                  scheduler,
                  frameworks,
                  auth,
                  identities,
                  connections,
                  munge,
                  options.version,
                  options.reflection,
                  options.call_limit,
                  options.agents,
                  options.runs_dir,
                  options.prune,
                  options.metrics,
                  options.notify_commands},
          local(context, /*local=*/true),
          tcp(context, /*local=*/false) {}
    std::vector<Endpoint*> endpoints() { return {&local, &tcp}; }
    // Limits the log to one line in ten seconds.
    bool MayLog() {
      const int64_t now = absl::ToInt64Seconds(Clock::System().Steady());
      int64_t last = last_logged;
      return now - last >= 10 && last_logged.compare_exchange_strong(last, now);
    }

    Connections connections;
    Authenticator identities;
    MungeLogin munge;
    CallPools pools;
    WatchHub watches;
    EndpointContext context;
    Endpoint local, tcp;
    std::atomic<int64_t> last_logged = -10;  // in seconds of Clock::Steady
  };

  // Sets the name of the account at the other end of a connection. Returns UNAVAILABLE if it is not known.
  // The connection must be closed then: its calls would have a wrong identity until it ends. Clients connect
  // again.
  static absl::Status SetUser(Parts& parts, int fd, uid_t uid) {
    const absl::StatusOr<std::string> name = parts.identities.users().NameOf(uid);
    if (name.ok()) {
      parts.connections.SetUser(fd, *name);
    } else if (parts.MayLog()) {
      spdlog::warn("a connection on the Unix socket was closed: {}", name.status().ToString());
    }
    return name.status();
  }

  std::unique_ptr<Parts> parts_;     // null after Shutdown
  bool ended_ = true;                // whether all threads of the pools have ended
  std::unique_ptr<TlsRelay> relay_;  // null without TLS
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Watchdog> watchdog_;
  std::vector<std::string> addresses_;
  mutable absl::Mutex mutex_;
  std::string problem_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcServer(const RpcServerOptions& options,
                                                          Coordinator& coordinator, db::Store& store,
                                                          const Scheduler& scheduler, Frameworks& frameworks,
                                                          const Auth& auth) {
  std::vector<Address> addresses;
  for (const std::string& text : options.listen) {
    const auto address = ParseAddress(text);
    if (!address.ok()) return address.status();
    addresses.push_back(*address);
  }
  auto server = std::make_unique<Impl>(options, coordinator, store, scheduler, frameworks, auth);
  if (auto s = server->Start(addresses, options); !s.ok()) return s;
  return server;
}

}  // namespace scalelab::server
