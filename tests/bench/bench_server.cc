#include "tests/bench/bench_server.h"

#include <grpcpp/create_channel.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "db/sqlite_store.h"
#include "proto/uuid.h"
#include "server/daemon.h"

namespace scalelab::bench {
namespace {

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "scalelab-bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

}  // namespace

absl::StatusOr<std::string> PretendScheduler::Submit(const server::JobRequest& request) {
  std::lock_guard lock(mutex_);
  jobs_.emplace_back(request.token, request.secret);
  return absl::StrCat(jobs_.size());
}

absl::StatusOr<std::vector<server::JobStatus>> PretendScheduler::Poll(
    const std::vector<std::string>& tokens) {
  using State = server::JobStatus::State;
  std::vector<server::JobStatus> jobs;
  for (const std::string& token : tokens)
    jobs.push_back({token, "1", runs_ ? State::kRunning : State::kPending, ""});
  return jobs;
}

std::vector<std::pair<std::string, std::string>> PretendScheduler::jobs() {
  std::lock_guard lock(mutex_);
  return jobs_;
}

BenchServer::BenchServer(const std::string& directory, bool jobs_run, const std::string& database)
    : scheduler_(jobs_run) {
  static std::atomic<int> count{0};
  const int n = ++count;
  database_ = database.empty() ? absl::StrCat(directory, "/bench-", n, ".db") : database;
  address_ = absl::StrCat("unix:", directory, "/bench-", n, ".sock");
  auto store = db::OpenSqliteStore({database_});
  Require(store.status());
  store_ = *std::move(store);
  server::CoordinatorOptions options;
  options.runs_dir = directory;
  server::LimitRule pending;
  pending.pending_allocations = jobs_run ? 10'000 : 4;
  options.policy.limits.rules = {pending};
  options.secret_for = [this](const std::string& token) { return auth_.SecretFor(token); };
  options.new_token = RandomUuid;
  coordinator_ = std::make_unique<server::Coordinator>(std::move(options), *store_, scheduler_);
  Require(coordinator_->Start());
  server::RpcServerOptions serve;
  serve.listen = {address_};
  serve.version = "bench";
  auto rpc = server::StartRpcServer(serve, *coordinator_, *store_, scheduler_, frameworks_, auth_);
  Require(rpc.status());
  rpc_ = *std::move(rpc);
}

BenchServer::~BenchServer() {
  coordinator_->Stop();
  rpc_.reset();
}

std::shared_ptr<grpc::Channel> BenchServer::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
}

v1::StudySpec BenchStudy(int runs) {
  v1::StudySpec spec;
  spec.set_study("bench");
  auto& fixed = *spec.mutable_fixed()->mutable_fields();
  fixed["model"].set_string_value("resnet20");
  fixed["dataset"].set_string_value("synthetic");
  fixed["ranks"].set_number_value(1);
  spec.set_repeats(runs);
  spec.mutable_scaling()->set_global_batch(64);
  return spec;
}

}  // namespace scalelab::bench
