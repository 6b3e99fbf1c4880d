#include "tests/bench/daemon.h"

#include <grpcpp/create_channel.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "scalelab/v1/cluster.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "server/identity/session_tokens.h"
#include "server/rpc/auth.h"

namespace scalelab::bench {
namespace {

constexpr std::chrono::seconds kPatience{120};

void Require(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "scalelab-bench: %s\n", what.c_str());
  std::exit(1);
}

}  // namespace

std::unique_ptr<grpc::ClientContext> Within(std::chrono::milliseconds limit) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + limit);
  return context;
}

Daemon::Daemon(const std::string& directory, const std::vector<std::string>& flags, int files) {
  static std::atomic<int> count{0};
  directory_ = absl::StrCat(directory, "/daemon-", ++count);
  std::filesystem::create_directories(directory_);
  std::vector<std::string> argv = {
      absl::StrCat(SCALELAB_BIN_DIR, "/scalelabd"), "--data",   directory_ + "/data", "--listen",
      absl::StrCat("unix:", directory_, "/socket"), "--listen", "127.0.0.1:0"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  if (files > 0) {
    const std::vector<std::string> shell = {"sh", "-c", absl::StrCat("ulimit -n ", files, "; exec \"$@\""),
                                            "sh"};
    argv.insert(argv.begin(), shell.begin(), shell.end());
  }
  process_ = std::make_unique<e2e::Background>(argv, directory_ + "/log");
  const std::string line = process_->Line();
  for (const absl::string_view address : absl::StrSplit(line, ' ')) {
    int port = 0;
    if (absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) tcp_port_ = port;
  }
  Require(tcp_port_ != 0,
          absl::StrCat("scalelabd does not start: ", line, e2e::ReadFile(directory_ + "/log")));
}

Daemon::~Daemon() {
  process_->Signal(SIGKILL);
  process_->Wait();
  std::set<pid_t> left;
  for (const pid_t pid : e2e::ProcessesWith(directory_)) left.insert(pid);
  for (const pid_t pid : e2e::ProcessesInEnvironment(directory_)) left.insert(pid);
  for (const pid_t pid : left) kill(pid, SIGKILL);
}

std::shared_ptr<grpc::Channel> Daemon::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("unix:", directory_, "/socket"),
                                   grpc::InsecureChannelCredentials(), arguments);
}

std::string Daemon::Key() const {
  return std::string(absl::StripAsciiWhitespace(e2e::ReadFile(directory_ + "/data/server.key")));
}

std::string Daemon::AuthorizationOf(const std::string& user) const {
  return absl::StrCat("Bearer ", server::SessionTokens(Key()).Issue(user, "bench", absl::Now()));
}

bool Daemon::Answers() const {
  v1::ListStudiesResponse studies;
  return v1::StudyService::NewStub(Connect())->ListStudies(Within(kPatience).get(), {}, &studies).ok();
}

std::string Daemon::Submit(const v1::StudySpec& spec) const {
  v1::CreateStudyRequest request;
  *request.mutable_spec() = spec;
  v1::CreateStudyResponse response;
  const grpc::Status status =
      v1::StudyService::NewStub(Connect())->CreateStudy(Within(kPatience).get(), request, &response);
  Require(status.ok(), "the study is refused: " + status.error_message());
  return response.study().name();
}

void Daemon::Cancel(const std::string& study) const {
  v1::CancelStudyRequest request;
  request.set_name(study);
  v1::CancelStudyResponse response;
  const grpc::Status status =
      v1::StudyService::NewStub(Connect())->CancelStudy(Within(kPatience).get(), request, &response);
  Require(status.ok(), absl::StrCat("cannot cancel ", study, ": ", status.error_message()));
}

std::vector<std::pair<std::string, std::string>> Daemon::Allocations() const {
  v1::GetClusterResponse cluster;
  const grpc::Status status =
      v1::ClusterService::NewStub(Connect())->GetCluster(Within(kPatience).get(), {}, &cluster);
  Require(status.ok(), "cannot list the allocations: " + status.error_message());
  const server::Auth auth("", Key());
  std::vector<std::pair<std::string, std::string>> found;
  for (const v1::Allocation& allocation : cluster.allocations()) {
    const std::string token = allocation.name().substr(allocation.name().rfind('/') + 1);
    found.emplace_back(token, auth.SecretFor(token));
  }
  return found;
}

v1::StudySpec CommandStudy(const std::vector<std::string>& command, int repeats) {
  v1::StudySpec spec;
  spec.set_study("bench");
  auto& fixed = *spec.mutable_fixed()->mutable_fields();
  fixed["engine"].set_string_value("custom");
  fixed["ranks"].set_number_value(1);
  fixed["max_steps"].set_number_value(1);
  for (const std::string& word : command)
    fixed["command"].mutable_list_value()->add_values()->set_string_value(word);
  spec.set_repeats(repeats);
  return spec;
}

}  // namespace scalelab::bench
