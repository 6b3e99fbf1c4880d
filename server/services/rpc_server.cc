#include "server/services/rpc_server.h"

#include <unistd.h>

#include "server/services/endpoint.h"
#include "server/services/listener.h"
#include "server/services/socket.h"
#include "server/services/watchdog.h"

namespace scalelab::server {
namespace {

// How long Shutdown waits for threads of the pools when no call is left. A longer read is blocked.
constexpr absl::Duration kPoolGrace = absl::Seconds(2);

class Impl final : public RpcServer {
 public:
  Impl(const RpcServerOptions& options, Coordinator& coordinator, db::Store& store,
       const Scheduler& scheduler, Frameworks& frameworks, const Auth& auth)
      : parts_(std::make_unique<Parts>(options, coordinator, store, scheduler, frameworks, auth)) {}

  ~Impl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start(const std::vector<Address>& addresses, absl::Duration stuck_after) {
    absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Open(addresses, parts_->connections);
    if (!listener.ok()) return listener.status();
    for (Endpoint* endpoint : parts_->endpoints()) {
      if (auto s = endpoint->Start(); !s.ok()) return s;
    }
    listener_ = *std::move(listener);
    addresses_ = listener_->addresses();
    listener_->Start([parts = parts_.get()](int fd, bool local) {
      parts->pools.connections.Run([fd, &endpoint = local ? parts->local : parts->tcp](absl::Status status) {
        if (status.ok())
          endpoint.Take(fd);
        else
          close(fd);
      });
    });
    watchdog_ = std::make_unique<Watchdog>(parts_->context.coordinator, stuck_after, [this](bool healthy) {
      for (Endpoint* endpoint : parts_->endpoints()) endpoint->SetHealthy(healthy);
    });
    return absl::OkStatus();
  }

  const std::vector<std::string>& addresses() const override { return addresses_; }

  bool Shutdown(absl::Duration grace) override {
    if (parts_ == nullptr) return ended_;
    watchdog_.reset();
    listener_.reset();
    const absl::Time deadline = absl::Now() + grace;
    for (Endpoint* endpoint : parts_->endpoints()) endpoint->Shutdown(deadline);
    ended_ = parts_->pools.Stop(kPoolGrace);
    // A blocked thread may continue at any time, so everything that it may use is kept until the process ends.
    if (!ended_) (void)parts_.release();
    parts_.reset();
    return ended_;
  }

 private:
  // Everything that a thread of the pools may use.
  struct Parts {
    Parts(const RpcServerOptions& options, Coordinator& coordinator, db::Store& store,
          const Scheduler& scheduler, Frameworks& frameworks, const Auth& auth)
        : connections(options.connections),
          watches(coordinator, pools.reads,
                  [&store](int64_t id, v1::Study* study) { return ReadStudy(store, id, study); }),
          context{coordinator,       store, pools,       watches,         scheduler,
                  frameworks,        auth,  connections, options.version, options.reflection,
                  options.call_limit},
          local(context, /*local=*/true),
          tcp(context, /*local=*/false) {}
    std::vector<Endpoint*> endpoints() { return {&local, &tcp}; }

    Connections connections;
    CallPools pools;
    WatchHub watches;
    EndpointContext context;
    Endpoint local, tcp;
  };

  std::unique_ptr<Parts> parts_;  // null after Shutdown
  bool ended_ = true;             // all threads of the pools
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Watchdog> watchdog_;
  std::vector<std::string> addresses_;
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
  if (auto s = server->Start(addresses, options.stuck_after); !s.ok()) return s;
  return server;
}

}  // namespace scalelab::server
