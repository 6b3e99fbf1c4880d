// A coordinator with its database and gRPC in this process, and a scheduler that only pretends to run jobs.
// The benchmarks measure the service, not training.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "server/core/coordinator.h"
#include "server/services/rpc_server.h"

namespace scalelab::bench {

class PretendScheduler final : public server::Scheduler {
 public:
  // `runs`: whether jobs are reported as running immediately, or as pending forever.
  explicit PretendScheduler(bool runs) : runs_(runs) {}
  std::string name() const override { return "pretend"; }
  server::Capacity capacity() const override { return {}; }
  absl::StatusOr<std::string> Submit(const server::JobRequest& request) override;
  std::string Script(const server::JobRequest&) const override { return ""; }
  absl::StatusOr<std::vector<server::JobStatus>> Poll(const std::vector<std::string>& tokens) override;
  absl::StatusOr<server::ClusterView> View() override { return server::ClusterView{}; }
  absl::Status Cancel(const std::vector<std::string>&) override { return absl::OkStatus(); }
  // Returns the tokens of all submitted jobs, with their secrets.
  std::vector<std::pair<std::string, std::string>> jobs();

 private:
  const bool runs_;
  std::mutex mutex_;
  std::vector<std::pair<std::string, std::string>> jobs_;
};

class BenchServer {
 public:
  // Aborts with a message if the server cannot start; a benchmark has no recovery. `database` is a database
  // that an earlier server has left; if it is empty, makes a new one.
  BenchServer(const std::string& directory, bool jobs_run, const std::string& database = "");
  ~BenchServer();

  // Returns a new connection that is not shared with other channels.
  std::shared_ptr<grpc::Channel> Connect() const;
  PretendScheduler& scheduler() { return scheduler_; }
  const std::string& database() const { return database_; }

 private:
  std::string database_, address_;
  PretendScheduler scheduler_;
  server::Frameworks frameworks_{{}};
  server::Auth auth_{"client-token", "server-key"};
  std::unique_ptr<db::Store> store_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<server::RpcServer> rpc_;
};

// Returns a study of one-rank synthetic runs.
v1::StudySpec BenchStudy(int runs);

}  // namespace scalelab::bench
