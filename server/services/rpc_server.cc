#include "server/services/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "server/services/cluster_service.h"
#include "server/services/reader_pool.h"
#include "server/services/result_service.h"
#include "server/services/run_service.h"
#include "server/services/socket.h"
#include "server/services/study_service.h"
#include "server/services/worker_service.h"

namespace scalelab::server {
namespace {

constexpr int kMaxRequestBytes = 4 << 20;
// As many threads as the store has connections that read; the queue holds a burst of calls.
constexpr int kReaders = 4;
constexpr size_t kReaderQueue = 1024;

class Impl final : public RpcServer {
 public:
  Impl(const RpcServerOptions& options, Coordinator& coordinator, db::Store& store,
       const Scheduler& scheduler, Frameworks& frameworks, const Auth& auth)
      : readers_(kReaders, kReaderQueue),
        studies_(coordinator, store, readers_, scheduler, frameworks, auth),
        runs_(coordinator, store, readers_, auth),
        results_(store, auth),
        cluster_(coordinator, scheduler, frameworks, auth, options.version),
        workers_(coordinator, auth) {}

  ~Impl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start(const std::vector<Address>& addresses) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    // Without SO_REUSEPORT a second server on the same port fails instead of taking a part of the calls.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    std::vector<int> ports(addresses.size(), -1);
    for (size_t i = 0; i < addresses.size(); ++i) {
      if (!addresses[i].unix_path.empty()) {
        if (auto s = RemoveStaleSocket(addresses[i].unix_path); !s.ok()) return s;
      }
      builder.AddListeningPort(addresses[i].text(), grpc::InsecureServerCredentials(), &ports[i]);
    }
    builder.RegisterService(&studies_);
    builder.RegisterService(&runs_);
    builder.RegisterService(&results_);
    builder.RegisterService(&cluster_);
    builder.RegisterService(&workers_);
    // Create the socket without permissions for other users, so that they can never connect. The umask
    // applies to the whole process. It keeps all permissions of the owner, because other threads may create
    // files at the same time.
    const mode_t before = umask(0077);
    server_ = builder.BuildAndStart();
    umask(before);
    for (const Address& address : addresses) {
      if (!address.unix_path.empty()) (void)chmod(address.unix_path.c_str(), 0600);
    }
    for (size_t i = 0; i < addresses.size(); ++i) {
      if (server_ == nullptr || ports[i] <= 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("cannot serve on ", addresses[i].text(),
                         ": another program uses it, or it is no address of this machine; choose another "
                         "--listen"));
      }
      Address served = addresses[i];
      if (served.unix_path.empty()) served.port = ports[i];
      addresses_.push_back(served.text());
    }
    return absl::OkStatus();
  }

  const std::vector<std::string>& addresses() const override { return addresses_; }

  void Shutdown(absl::Duration grace) override {
    if (server_ == nullptr) return;
    server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
    server_->Wait();
    server_.reset();
  }

 private:
  ReaderPool readers_;  // before the services, which use it
  StudyService studies_;
  RunService runs_;
  ResultService results_;
  ClusterService cluster_;
  WorkerService workers_;
  std::unique_ptr<grpc::Server> server_;
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
  if (auto s = server->Start(addresses); !s.ok()) return s;
  return server;
}

}  // namespace scalelab::server
