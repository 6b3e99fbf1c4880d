// A real scalelabd with the local scheduler in a process of its own, for benchmarks of the whole service.
#pragma once

#include <grpcpp/channel.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/client_context.h"
#include "scalelab/v1/study.pb.h"
#include "tests/e2e/process.h"

namespace scalelab::bench {

class Daemon {
 public:
  // `flags` are flags of scalelabd, in addition to the directory and the addresses. `files` is its limit of
  // open files; 0 means the limit of this process. Aborts with a message if scalelabd does not start.
  Daemon(const std::string& directory, const std::vector<std::string>& flags, int files = 0);
  ~Daemon();  // kills it and the processes that it has started
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Returns a new connection over the Unix socket that is not shared with other channels.
  std::shared_ptr<grpc::Channel> Connect() const;
  // The Unix socket, as --server takes it.
  std::string address() const { return "unix:" + directory_ + "/socket"; }
  int tcp_port() const { return tcp_port_; }
  pid_t pid() const { return process_->pid(); }
  // Resident memory in MB.
  double Memory() const { return static_cast<double>(e2e::ResidentBytes(pid())) / 1e6; }
  // Returns the value of the metadata "authorization" for calls of this user, who needs no account. It is valid for 30 minutes.
  std::string AuthorizationOf(const std::string& user) const;
  // Returns whether a call is answered.
  bool Answers() const;
  // Submits a study. Returns its name; aborts with a message if the study is refused.
  std::string Submit(const v1::StudySpec& spec) const;
  void Cancel(const std::string& study) const;
  // Returns the tokens of the allocations, with their secrets.
  std::vector<std::pair<std::string, std::string>> Allocations() const;

 private:
  std::string Key() const;  // the secret of the server

  std::string directory_;
  int tcp_port_ = 0;
  std::unique_ptr<e2e::Background> process_;
};

std::unique_ptr<grpc::ClientContext> Within(std::chrono::milliseconds limit);

// Returns a study of one-rank runs of a program.
v1::StudySpec CommandStudy(const std::vector<std::string>& command, int repeats);

}  // namespace scalelab::bench
