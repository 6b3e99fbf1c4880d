#include "server/daemon.h"

#include <sys/stat.h>

#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "db/sqlite_store.h"
#include "proto/uuid.h"
#include "server/process_limits.h"
#include "server/scheduler/local_scheduler.h"
#include "server/scheduler/slurm_scheduler.h"
#include "server/version.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {

static LocalSchedulerOptions LocalOptions(const ServerConfig& config, const DataDir& data_dir,
                                          std::function<void()> changed) {
  LocalSchedulerOptions options;
  options.directory = data_dir.allocations();
  options.worker_program = config.worker_program;
  options.server_address = config.listen.front();
  options.slots = config.local_slots;
  options.changed = std::move(changed);
  return options;
}

// Looks for the trainer and the adapters where the worker does: relative to its directory.
static FrameworksOptions FrameworksOf(const ServerConfig& config) {
  std::error_code error;  // after an error the path is used unresolved
  std::filesystem::path worker = std::filesystem::canonical(config.worker_program, error);
  if (error) worker = config.worker_program;
  const std::filesystem::path bin = worker.parent_path();
  FrameworksOptions options;
  options.directory = config.frameworks_dir;
  options.environments = config.environments;
  options.probe.adapters = bin.parent_path() / "share/scalelab/adapters";
  options.probe.trainer = bin / "scalelab-trainer";
  options.nodes_are_here = config.scheduler == "local";
  return options;
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const ServerConfig& config) {
  std::unique_ptr<Daemon> daemon(new Daemon());

  absl::StatusOr<int> files = RaiseFileLimit();
  if (!files.ok()) return files.status();
  const ConnectionLimits connections = ConnectionLimits::For(*files);
  spdlog::info("at most {} open files: {} connections, {} of them over TCP, {} from one address", *files,
               connections.total, connections.tcp, connections.per_address);

  absl::StatusOr<DataDir> dir = DataDir::Open(config.data_dir);
  if (!dir.ok()) return dir.status();
  daemon->data_dir_ = std::make_unique<DataDir>(*std::move(dir));
  std::error_code error;
  std::filesystem::create_directories(config.runs_dir, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("cannot create the directory of runs ", config.runs_dir,
                                                      ": ", error.message(), "; choose another with --runs"));
  }
  daemon->auth_ = std::make_unique<Auth>(daemon->data_dir_->client_token(), daemon->data_dir_->server_key());

  auto store = db::OpenSqliteStore({daemon->data_dir_->database(), config.rollback_journal});
  if (!store.ok()) return store.status();
  daemon->store_ = *std::move(store);
  daemon->maintenance_ = std::make_unique<db::Maintenance>(*daemon->store_, [](const absl::Status& status) {
    spdlog::error("maintenance of the database failed, and is tried again: {}", status.ToString());
  });

  // Null until the coordinator exists. Changes before that are found by its first poll.
  auto coordinator_or_null = std::make_shared<std::atomic<Coordinator*>>(nullptr);
  auto scheduler = config.scheduler == "slurm"
                       ? NewSlurmScheduler({{config.runs_dir, config.worker_program, config.worker_server,
                                             config.sbatch_options}})
                       : NewLocalScheduler(LocalOptions(config, *daemon->data_dir_, [coordinator_or_null] {
                           if (Coordinator* coordinator = coordinator_or_null->load())
                             coordinator->PollSoon();
                         }));
  if (!scheduler.ok()) return scheduler.status();
  daemon->scheduler_ = *std::move(scheduler);

  daemon->frameworks_ = std::make_unique<Frameworks>(FrameworksOf(config));

  daemon->events_ = std::make_unique<FileEventReader>();
  CoordinatorOptions options;
  options.events = daemon->events_.get();
  options.runs_dir = config.runs_dir;
  options.worker_timeout = config.worker_timeout;
  options.max_pending_allocations = config.pending_jobs_per_user;
  options.poll_interval = config.poll_interval;
  if (config.scheduler == "slurm") options.min_poll_interval = absl::Seconds(1);
  options.secret_for = [auth = daemon->auth_.get()](const std::string& token) {
    return auth->SecretFor(token);
  };
  options.new_token = RandomUuid;
  options.environment_of = [frameworks = daemon->frameworks_.get()](const std::string& engine) {
    return frameworks->EnvironmentOf(engine);
  };
  daemon->coordinator_ =
      std::make_unique<Coordinator>(std::move(options), *daemon->store_, *daemon->scheduler_);
  coordinator_or_null->store(daemon->coordinator_.get());
  if (auto s = daemon->coordinator_->Start(); !s.ok()) return s;

  RpcServerOptions serve;
  serve.listen = config.listen;
  serve.version = kVersion;
  serve.reflection = config.reflection;
  serve.connections = connections;
  auto rpc = StartRpcServer(serve, *daemon->coordinator_, *daemon->store_, *daemon->scheduler_,
                            *daemon->frameworks_, *daemon->auth_);
  if (!rpc.ok()) return rpc.status();
  daemon->rpc_ = *std::move(rpc);
  return daemon;
}

Daemon::~Daemon() {
  // The coordinator completes the pending calls; then the RPC server can shut down.
  if (frameworks_ != nullptr) frameworks_->Stop();
  if (coordinator_ != nullptr) coordinator_->Stop();
  const bool events_ended = events_ == nullptr || events_->Stop(absl::Seconds(2));
  const bool calls_ended = rpc_ == nullptr || rpc_->Shutdown(absl::Seconds(2));
  if (!events_ended || !calls_ended) {
    // A thread is blocked in a read of a file or of the database, and may use these parts when it continues.
    spdlog::warn("a read is still blocked; ending without it");
    (void)auth_.release();
    (void)store_.release();
    (void)scheduler_.release();
    (void)frameworks_.release();
    (void)coordinator_.release();
    return;
  }
  rpc_.reset();
  scheduler_.reset();  // calls the coordinator no more
  coordinator_.reset();
}

}  // namespace scalelab::server
