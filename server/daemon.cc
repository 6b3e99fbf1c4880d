#include "server/daemon.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catalog/installation.h"
#include "db/sqlite_store.h"
#include "proto/uuid.h"
#include "server/notify/channels.h"
#include "server/process_limits.h"
#include "server/retention/study_ids.h"
#include "server/scheduler/agent/agent_scheduler.h"
#include "server/scheduler/local_scheduler.h"
#include "server/scheduler/slurm_scheduler.h"
#include "server/tls_identity.h"
#include "server/version.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {

// Returns an address in the form that clients and workers use.
static std::string ForClients(const std::string& address, const TlsIdentity& tls) {
  return absl::StartsWith(address, "unix:") ? address : tls.address_prefix + address;
}

static LocalSchedulerOptions LocalOptions(const ServerConfig& config, const DataDir& data_dir,
                                          const TlsIdentity& tls, std::function<void()> changed) {
  LocalSchedulerOptions options;
  options.directory = data_dir.allocations();
  options.worker_program = config.worker_program;
  options.server_address = ForClients(config.listen.front(), tls);
  if (!absl::StartsWith(options.server_address, "unix:")) options.server_certificate = tls.worker_certificate;
  options.slots = config.local_slots;
  options.changed = std::move(changed);
  return options;
}

// Returns the owners of all allocations, by token. Called on the thread of the scheduler.
static absl::StatusOr<std::map<std::string, std::string>> UsersOfJobs(Coordinator* coordinator) {
  const absl::Status stopping = absl::UnavailableError("the coordinator is not running");
  if (coordinator == nullptr) return stopping;
  // The promise is shared, because this function may return before set_value does.
  auto promise = std::make_shared<std::promise<absl::StatusOr<std::map<std::string, std::string>>>>();
  coordinator->Read([promise, stopping](const State* state) {
    if (state == nullptr) return promise->set_value(stopping);
    std::map<std::string, std::string> users;
    for (const auto& [id, allocation] : state->allocations)
      users[allocation->row.token] = allocation->row.owner;
    promise->set_value(std::move(users));
  });
  return promise->get_future().get();
}

// Creates the directory of the runs. If each user has a directory in it, its mode allows every user to create
// a directory, but not to remove those of others.
static absl::Status MakeRunsDirectory(const ServerConfig& config) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(config.runs_dir, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("cannot create the directory of runs ", config.runs_dir,
                                                      ": ", error.message(), "; choose another with --runs"));
  }
  if (config.jobs_run_as == "service") return absl::OkStatus();
  struct stat found {};
  if (made && chmod(config.runs_dir.c_str(), 01777) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot set the mode of ", config.runs_dir, ": ", std::strerror(errno)));
  }
  if (stat(config.runs_dir.c_str(), &found) == 0 && (found.st_mode & S_ISVTX) != 0 &&
      (found.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("with jobs_run_as: user every user needs a directory in ",
                                                    config.runs_dir, "; allow that with: chmod 1777 ",
                                                    config.runs_dir));
}

static SlurmSchedulerOptions SlurmOptions(const ServerConfig& config, const TlsIdentity& tls) {
  SlurmSchedulerOptions options;
  options.script.runs_dir = config.runs_dir;
  options.script.worker_program = config.worker_program;
  options.script.server_address = ForClients(config.worker_server, tls);
  options.script.server_certificate = tls.worker_certificate;
  options.script.site_options = config.sbatch_options;
  return options;
}

// Looks for the trainer and the adapters where the worker does: relative to its directory.
static FrameworksOptions FrameworksOf(const ServerConfig& config) {
  std::error_code error;  // after an error the path is used unresolved
  std::filesystem::path worker = std::filesystem::canonical(config.worker_program, error);
  if (error) worker = config.worker_program;
  FrameworksOptions options;
  options.directory = config.frameworks_dir;
  options.environments = config.environments;
  options.probe.adapters = AdaptersDirectory(worker);
  options.probe.trainer = CompanionProgram(worker, "scalelab-trainer");
  options.nodes_are_here = config.scheduler == "local";
  return options;
}

static CoordinatorTuning TuningOf(const ServerConfig& config) {
  CoordinatorTuning tuning;
  tuning.worker_timeout = config.worker_timeout;
  tuning.poll_interval = config.poll_interval;
  tuning.policy = config.policy;
  return tuning;
}

static RoleLists RolesOf(const ServerConfig& config) { return {config.admins, config.users, config.viewers}; }

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const ServerConfig& config) {
  std::unique_ptr<Daemon> daemon(new Daemon(config));

  absl::StatusOr<int> files = RaiseFileLimit();
  if (!files.ok()) return files.status();

  absl::StatusOr<DataDir> dir = DataDir::Open(config.data_dir);
  if (!dir.ok()) return dir.status();
  daemon->data_dir_ = std::make_unique<DataDir>(*std::move(dir));
  const absl::StatusOr<TlsIdentity> tls = PrepareTls(config, *daemon->data_dir_);
  if (!tls.ok()) return tls.status();
  const ConnectionLimits connections = ConnectionLimits::For(*files, tls->pair.has_value());
  spdlog::info("at most {} open files: {} connections, {} of them over TCP, {} from one address", *files,
               connections.total, connections.tcp, connections.per_address);
  if (auto s = MakeRunsDirectory(config); !s.ok()) return s;
  daemon->auth_ = std::make_unique<Auth>(daemon->data_dir_->client_token(), daemon->data_dir_->server_key());

  auto store = db::OpenSqliteStore({daemon->data_dir_->database(), config.rollback_journal});
  if (!store.ok()) return store.status();
  daemon->store_ = *std::move(store);
  // With agents, the directories belong to the users, who could choose any number.
  if (config.jobs_run_as == "service") {
    if (auto s = SkipIdsOfDirectories(config.runs_dir, *daemon->store_); !s.ok()) return s;
  }
  daemon->maintenance_ = std::make_unique<db::Maintenance>(*daemon->store_, [](const absl::Status& status) {
    spdlog::error("maintenance of the database failed, and is tried again: {}", status.ToString());
  });

  if (!config.metrics.empty()) daemon->metrics_ = std::make_unique<Metrics>(kVersion);
  if (config.jobs_run_as == "user") daemon->agents_ = std::make_unique<AgentHub>();
  RetentionOptions retention{config.retention, config.runs_dir, absl::Now};
  retention.agents = daemon->agents_.get();
  daemon->retention_ = std::make_unique<Retention>(std::move(retention), *daemon->store_);

  SenderOptions send;
  send.deliver = [channels = std::make_shared<const Channels>(config.notify)](const db::NoticeRow& notice) {
    return channels->Deliver(notice);
  };
  send.now = absl::Now;
  daemon->sender_ = std::make_unique<Sender>(std::move(send), *daemon->store_);
  daemon->scorer_ = std::make_unique<Scorer>(*daemon->store_);

  // Null until the coordinator exists. The first poll of the coordinator detects changes
  // that happened before.
  auto coordinator_or_null = std::make_shared<std::atomic<Coordinator*>>(nullptr);
  const SlurmSchedulerOptions slurm = SlurmOptions(config, *tls);
  absl::StatusOr<std::unique_ptr<Scheduler>> scheduler;
  if (daemon->agents_ != nullptr) {
    AgentSchedulerOptions through_agents;
    through_agents.slurm = slurm;
    through_agents.users_of_jobs = [coordinator_or_null] { return UsersOfJobs(coordinator_or_null->load()); };
    scheduler = NewAgentScheduler(std::move(through_agents), *daemon->agents_);
    daemon->agents_->SetListener([coordinator_or_null](const std::string& user) {
      if (Coordinator* coordinator = coordinator_or_null->load()) coordinator->AgentConnected(user);
    });
  } else if (config.scheduler == "slurm") {
    scheduler = NewSlurmScheduler(slurm);
  } else {
    scheduler = NewLocalScheduler(LocalOptions(config, *daemon->data_dir_, *tls, [coordinator_or_null] {
      if (Coordinator* coordinator = coordinator_or_null->load()) coordinator->PollSoon();
    }));
  }
  if (!scheduler.ok()) return scheduler.status();
  daemon->scheduler_ = *std::move(scheduler);

  daemon->frameworks_ = std::make_unique<Frameworks>(FrameworksOf(config));

  daemon->events_ = std::make_unique<FileEventReader>();
  CoordinatorOptions options;
  options.events = daemon->events_.get();
  if (daemon->agents_ != nullptr) {
    daemon->agent_events_ = std::make_unique<AgentEventReader>(
        *daemon->agents_, config.runs_dir, daemon->data_dir_->path() + "/spool", *daemon->events_);
    options.events = daemon->agent_events_.get();
  }
  options.observer = daemon->metrics_.get();
  options.runs_dir = config.runs_dir;
  static_cast<CoordinatorTuning&>(options) = TuningOf(config);
  options.runs_by_owner = daemon->agents_ != nullptr;
  options.noise_guard = config.noise_guard;
  if (config.scheduler == "slurm") options.min_poll_interval = absl::Seconds(1);
  options.secret_for = [auth = daemon->auth_.get()](const std::string& token) {
    return auth->SecretFor(token);
  };
  options.new_token = RandomUuid;
  options.environment_of = [frameworks = daemon->frameworks_.get()](const std::string& engine) {
    return frameworks->EnvironmentOf(engine);
  };
  daemon->assessor_ = std::make_unique<Assessor>(*daemon->store_);
  options.assess = [assessor = daemon->assessor_.get()](const AssessRequest& request, Assessor::Done done) {
    assessor->Assess(request, std::move(done));
  };
  daemon->coordinator_ =
      std::make_unique<Coordinator>(std::move(options), *daemon->store_, *daemon->scheduler_);
  coordinator_or_null->store(daemon->coordinator_.get());
  if (auto s = daemon->coordinator_->Start(); !s.ok()) return s;

  RpcServerOptions serve;
  serve.listen = config.listen;
  serve.tls = tls->pair;
  serve.decode_munge = [munge = Munge(config.munge_socket)](const std::string& credential) {
    return munge.Decode(credential);
  };
  serve.version = kVersion;
  serve.reflection = config.reflection;
  serve.connections = connections;
  serve.socket_mode = config.socket_mode;
  serve.identity = {RolesOf(config), config.proxies};
  serve.agents = daemon->agents_.get();
  serve.runs_dir = config.runs_dir;
  for (const auto& [name, argv] : config.notify.commands) serve.notify_commands.push_back(name);
  serve.metrics = daemon->metrics_.get();
  serve.prune = [retention = daemon->retention_.get()](bool dry_run, const std::function<bool()>& over) {
    return retention->Prune(dry_run, over);
  };
  auto rpc = StartRpcServer(serve, *daemon->coordinator_, *daemon->store_, *daemon->scheduler_,
                            *daemon->frameworks_, *daemon->auth_);
  if (!rpc.ok()) return rpc.status();
  daemon->rpc_ = *std::move(rpc);
  for (const std::string& address : daemon->rpc_->addresses())
    daemon->addresses_.push_back(ForClients(address, *tls));
  if (daemon->metrics_ != nullptr) {
    ExporterOptions serve_metrics;
    serve_metrics.address = config.metrics;
    serve_metrics.database = daemon->data_dir_->database();
    serve_metrics.store = daemon->store_.get();
    serve_metrics.problem = [server = daemon->rpc_.get()] { return server->problem(); };
    serve_metrics.connections = [server = daemon->rpc_.get()] { return server->connections(); };
    serve_metrics.pool_queues = [server = daemon->rpc_.get()] { return server->queued_calls(); };
    auto exporter = Exporter::Start(std::move(serve_metrics), *daemon->metrics_, *daemon->coordinator_);
    if (!exporter.ok()) return exporter.status();
    daemon->exporter_ = *std::move(exporter);
    spdlog::info("metrics are served on http://{}/metrics", config.metrics);
  }
  if (!config.web.empty()) {
    WebOptions serve_web;
    serve_web.address = config.web;
    serve_web.url = config.web_url;
    serve_web.key = daemon->data_dir_->server_key();
    serve_web.channel = daemon->rpc_->InProcessChannel();
    serve_web.identities = &daemon->rpc_->identities();
    serve_web.connections = std::clamp(*files / 8, 16, 1024);
    auto web = WebServer::Start(std::move(serve_web));
    if (!web.ok()) return web.status();
    daemon->web_ = *std::move(web);
    spdlog::info("the dashboard is served on {}; `scalelab web` prints a link that logs in",
                 daemon->web_->url());
  }
  return daemon;
}

void Daemon::Reconfigure(const ServerConfig& wanted) {
  coordinator_->Configure(TuningOf(wanted));
  rpc_->SetRoles(RolesOf(wanted));
  retention_->SetRules(wanted.retention);
  spdlog::set_level(spdlog::level::from_str(wanted.log_level));
  spdlog::info(
      "the configuration was read again; roles, limits, fair share, timeouts and the log level apply now, "
      "and "
      "rules of retention within an hour");
  for (const std::string& key : KeysThatNeedRestart(config_, wanted))
    spdlog::warn("{} has changed in the configuration and needs a restart of scalelabd", key);
}

Daemon::~Daemon() {
  exporter_.reset();
  web_.reset();  // all of its calls have ended
  // The coordinator completes the pending calls; then the RPC server can shut down.
  if (agents_ != nullptr) agents_->Stop();  // afterwards, no call waits for an agent
  if (frameworks_ != nullptr) frameworks_->Stop();
  // The time is longer than that for which Slurm's programs try to reach a controller. The next coordinator finds a job
  // that a call in flight submits.
  const bool scheduler_ended = coordinator_ == nullptr || coordinator_->Stop(absl::Seconds(30));
  const bool copies_ended = agent_events_ == nullptr || agent_events_->Stop(absl::Seconds(2));
  const bool retention_ended = retention_ == nullptr || retention_->Stop(absl::Seconds(2));
  const bool sender_ended = sender_ == nullptr || sender_->Stop(absl::Seconds(2));
  const bool scorer_ended = scorer_ == nullptr || scorer_->Stop(absl::Seconds(2));
  const bool assessor_ended = assessor_ == nullptr || assessor_->Stop(absl::Seconds(2));
  const bool events_ended = events_ == nullptr || events_->Stop(absl::Seconds(2));
  const bool calls_ended = rpc_ == nullptr || rpc_->Shutdown(absl::Seconds(2));
  if (!copies_ended || !events_ended || !calls_ended || !retention_ended || !sender_ended || !scorer_ended ||
      !assessor_ended || !scheduler_ended) {
    // A thread is still blocked in a call, and may use these parts when it continues. Do not destroy them.
    spdlog::warn("a read, a notification or a call of the scheduler is still blocked; ending without it");
    (void)metrics_.release();
    (void)auth_.release();
    (void)agents_.release();
    (void)events_.release();
    (void)agent_events_.release();
    (void)retention_.release();
    (void)sender_.release();
    (void)scorer_.release();
    (void)assessor_.release();
    (void)store_.release();
    (void)scheduler_.release();
    (void)frameworks_.release();
    (void)coordinator_.release();
    return;
  }
  rpc_.reset();
  scheduler_.reset();  // afterwards, it does not call the coordinator
  coordinator_.reset();
}

}  // namespace scalelab::server
