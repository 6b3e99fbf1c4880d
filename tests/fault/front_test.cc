// Abuse of the coordinator's RPC interface. While one client misbehaves, the calls of others are answered, and the
// training of others continues. Bounds are on behaviour, not on times.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "scalelab/v1/cluster.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "scalelab/v1/worker.grpc.pb.h"
#include "server/rpc/auth.h"
#include "tests/e2e/raw_connection.h"
#include "tests/e2e/service.h"
#include "tls/credentials.h"
#include "tls/fetch.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;

std::unique_ptr<grpc::ClientContext> Context(int seconds = 20) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  return context;
}

// Returns the integers from 1 to `last` as a YAML list.
std::string UpTo(int last) {
  std::string list;
  for (int i = 1; i <= last; ++i) absl::StrAppend(&list, list.empty() ? "[" : ", ", i);
  return list + "]";
}

// A study of 100,000 cells, whose runs train nothing for a minute.
std::string LargeStudy() {
  return absl::StrCat(
      "study: large\nfixed: {engine: custom, ranks: 1, command: [sleep, \"60\"]}\nmatrix:\n  max_steps: ",
      UpTo(1000), "\n  comm_timeout_s: ", UpTo(100), "\n");
}

// A service on a Unix socket and on TCP.
class Front : public Service {
 public:
  explicit Front(std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {"--listen", socket(), "--listen", address()});
    AddFlags(flags);
  }
  using Service::LimitFiles;
  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    return grpc::CreateCustomChannel(socket(), grpc::InsecureChannelCredentials(), own);
  }
  // Returns whether a call over TCP with the token is answered.
  bool AnswersOverTcp() const {
    const auto presented = tls::FetchCertificate("127.0.0.1", absl::StrCat(port_), absl::Seconds(5));
    if (!presented.ok()) return false;
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto credentials = *tls::Trust(presented->certificate, own);
    return Lists(grpc::CreateCustomChannel(address(), credentials, own));
  }
  // Returns whether a call with the token is answered.
  bool Lists(const std::shared_ptr<grpc::Channel>& channel) const {
    const auto context = Context();
    const std::string token(absl::StripAsciiWhitespace(ReadFile(data() + "/client.token")));
    context->AddMetadata("authorization", "Bearer " + token);
    v1::ListStudiesResponse studies;
    return v1::StudyService::NewStub(channel)->ListStudies(context.get(), {}, &studies).ok();
  }
  // Returns whether a call is answered.
  bool Answers() const {
    v1::GetClusterResponse cluster;
    v1::ListStudiesResponse studies;
    const auto channel = Channel();
    return v1::ClusterService::NewStub(channel)->GetCluster(Context().get(), {}, &cluster).ok() &&
           v1::StudyService::NewStub(channel)->ListStudies(Context().get(), {}, &studies).ok();
  }
  // Submits runs of a program that trains nothing for a minute.
  std::string SubmitSleepers(int repeats = 1) {
    return Submit(absl::StrCat(
        "study: sleepers\nfixed:\n  engine: custom\n  ranks: 1\n  max_steps: 1\n  command: [sh, -c, "
        "'echo started; exec sleep 60']\nrepeats: ",
        repeats, "\n"));
  }
  // Waits until a run is RUNNING and has a directory. Returns its name.
  std::string Running(const std::string& study) {
    std::string run;
    EXPECT_TRUE(Eventually([&] {
      for (const auto& candidate : Runs(study)) {
        if (candidate["state"] == "RUNNING") run = candidate["name"];
      }
      return !run.empty() && Run({"run", "logs", run}).out.find("started") != std::string::npos;
    })) << log();
    return run;
  }
  std::string Directory(const std::string& run) { return Attempts(run)[0]["directory"]; }
  int64_t Memory() const { return ResidentBytes(pid()); }
  pid_t pid() const { return const_cast<Front*>(this)->daemon()->pid(); }

 private:
  const int port_ = FreeTcpPort();
};

TEST(FrontDescriptors, ManyIdleConnectionsDoNotMakeTheServiceDeaf) {
  Front service({"--local-slots", "1"});
  service.LimitFiles(256);
  ASSERT_EQ(service.Start(), "");
  std::vector<int> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(ConnectTcp(service.port()));
  EXPECT_TRUE(service.Answers()) << "local clients have a share of their own";
  for (const int fd : idle) close(fd);
  EXPECT_TRUE(service.Answers());
  EXPECT_TRUE(Eventually([&] { return service.AnswersOverTcp(); })) << service.log();
}

TEST(FrontDescriptors, TooFewAreReportedInASentence) {
  Front service;
  service.LimitFiles(20);
  const std::string error = service.Start();
  EXPECT_THAT(error, HasSubstr("this process may open 20 files"));
  EXPECT_THAT(error, HasSubstr("ulimit -n"));
}

TEST(FrontDefaults, TcpIsEncryptedUnlessInsecureIsTrue) {
  Front service;
  ASSERT_EQ(service.Start(), "");
  EXPECT_TRUE(tls::FetchCertificate("127.0.0.1", absl::StrCat(service.port()), absl::Seconds(10)).ok());
  EXPECT_THAT(service.log(), HasSubstr("SHA-256 fingerprint"));
  Front insecure({"--insecure", "true"});
  ASSERT_EQ(insecure.Start(), "");
  EXPECT_FALSE(tls::FetchCertificate("127.0.0.1", absl::StrCat(insecure.port()), absl::Seconds(10)).ok());
  EXPECT_THAT(insecure.log(), HasSubstr("not encrypted"));
  EXPECT_TRUE(insecure.Lists(grpc::CreateChannel(insecure.address(), grpc::InsecureChannelCredentials())));
}

TEST(FrontWorkers, ALocalWorkerTrainsOverTls) {
  // Without a Unix socket, local workers dial the TCP address.
  const int port = FreeTcpPort();
  Service service({"--listen", absl::StrCat("127.0.0.1:", port), "--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), Program("scalelab"));
    return RunProgram(words, {{"XDG_CONFIG_HOME", service.dir() + "/config"},
                              {"SCALELAB_SERVER", absl::StrCat("127.0.0.1:", port)},
                              {"SCALELAB_TOKEN_FILE", service.data() + "/client.token"}});
  };
  ASSERT_EQ(run({"login", absl::StrCat("127.0.0.1:", port), "--yes"}).code, 0);
  const std::string study = service.File("study.yaml", R"(study: s
fixed:
  engine: custom
  ranks: 1
  max_steps: 1
  command: [sh, -c, "echo '{\"time\":1,\"event\":\"finish\"}' >> $SCALELAB_EVENTS"]
)");
  ASSERT_EQ(run({"study", "submit", study}).code, 0);
  const Output waited = run({"study", "wait", "1", "--timeout", "60s"});
  EXPECT_EQ(waited.code, 0) << waited.err << service.log();
}

TEST(FrontFiles, AFileOfTheLargestAllowedSizeDoesNotEndTheService) {
  Front service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  // With the least possible limit (`ulimit -f`) each write to the log or the database fails.
  rlimit before{};
  const rlimit least{1, RLIM_INFINITY};
  ASSERT_EQ(prlimit(service.pid(), RLIMIT_FSIZE, &least, &before), 0);
  const std::string file = service.data() + "/study.yaml";
  WriteFile(file, "study: s\nfixed: {engine: custom, ranks: 1, max_steps: 1, command: [\"true\"]}\n");
  const Output refused = service.Run({"--timeout", "3s", "study", "submit", file});
  EXPECT_NE(refused.code, 0);
  EXPECT_TRUE(service.Answers());
  ASSERT_EQ(prlimit(service.pid(), RLIMIT_FSIZE, &before, nullptr), 0);
  EXPECT_TRUE(Eventually([&] { return service.Run({"study", "submit", file}).code == 0; })) << service.log();
}

TEST(FrontFiles, NobodyElseCanWriteToWhatIsCreatedWithoutAUmask) {
  Front service({"--local-slots", "1"});
  const mode_t before = umask(0);
  const std::string error = service.Start();
  umask(before);
  ASSERT_EQ(error, "");
  service.Running(service.SubmitSleepers());
  const auto mode = [](const std::string& path) {
    struct stat found {};
    return stat(path.c_str(), &found) == 0 ? found.st_mode & 07777 : 0;
  };
  EXPECT_EQ(mode(service.data()), 0700u);
  EXPECT_EQ(mode(service.data() + "/runs"), 0755u);
  int files = 0;
  std::error_code gone;  // the database and the worker remove files meanwhile
  for (std::filesystem::recursive_directory_iterator entry(service.data(), gone), end; !gone && entry != end;
       entry.increment(gone)) {
    if (entry->is_symlink(gone)) continue;
    EXPECT_EQ(mode(entry->path()) & (S_IWGRP | S_IWOTH), 0u) << entry->path();
    ++files;
  }
  EXPECT_GE(files, 10);
}

TEST(FrontFiles, OddFilesInPlaceOfLogsDelayNobodyAndShowNoSecret) {
  Front service({"--local-slots", "4"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.SubmitSleepers();
  const std::string run = service.Running(study);
  const std::string log = service.Directory(run) + "/rank-0.out";
  std::filesystem::remove(log);
  ASSERT_EQ(mkfifo(log.c_str(), 0600), 0);
  std::vector<std::thread> readers;
  for (int i = 0; i < 12; ++i) readers.emplace_back([&] { service.Run({"run", "logs", run}, 10); });
  EXPECT_TRUE(service.Answers());
  for (std::thread& reader : readers) reader.join();
  std::filesystem::remove(log);
  std::filesystem::create_symlink(service.data() + "/server.key", log);
  const Output secret = service.Run({"run", "logs", run});
  EXPECT_NE(secret.code, 0);
  EXPECT_EQ(secret.out, "");
  EXPECT_THAT(secret.err, HasSubstr("not a regular file"));
  EXPECT_EQ(service.Attempts(run).size(), 1u);
  EXPECT_EQ(service.Runs(study)[0]["state"], "RUNNING");
}

TEST(FrontWorkers, AMalformedReportIsRefusedAndTheServiceLives) {
  Front service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const std::string run = service.Running(service.SubmitSleepers());
  v1::GetClusterResponse cluster;
  const auto channel = service.Channel();
  ASSERT_TRUE(v1::ClusterService::NewStub(channel)->GetCluster(Context().get(), {}, &cluster).ok());
  ASSERT_EQ(cluster.allocations_size(), 1);
  const std::string allocation =
      cluster.allocations(0).name().substr(cluster.allocations(0).name().rfind('/') + 1);
  const std::string token = std::filesystem::path(service.Directory(run)).filename();
  const server::Auth auth("",
                          std::string(absl::StripAsciiWhitespace(ReadFile(service.data() + "/server.key"))));
  for (const int node : {-1, 1, 1'000'000}) {
    auto context = Context();
    context->AddMetadata("authorization", "Bearer " + auth.SecretFor(allocation));
    context->AddMetadata("x-scalelab-allocation", allocation);
    v1::SynchronizeRequest request;
    request.set_node_index(node);
    request.set_instance("forged");
    auto* attempt = request.add_attempts();
    attempt->set_token(token);
    attempt->set_state(v1::SynchronizeRequest::AttemptStatus::ENDED);
    v1::SynchronizeResponse response;
    const auto status = v1::WorkerService::NewStub(channel)->Synchronize(context.get(), request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << node << ": " << status.error_message();
  }
  EXPECT_TRUE(service.Answers());
}

TEST(FrontCalls, LargeRequestsOfOneClientLoseNoWorkerOfAnother) {
  Front service({"--local-slots", "1", "--worker-timeout", "15"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.SubmitSleepers();
  const std::string run = service.Running(study);
  v1::PlanStudyRequest plan;
  v1::StudySpec& spec = *plan.mutable_spec();
  spec.set_study("large");
  (*spec.mutable_fixed()->mutable_fields())["model"].set_string_value("resnet8");
  (*spec.mutable_fixed()->mutable_fields())["dataset"].set_string_value("synthetic");
  const auto add_axis = [&](const std::string& key, int values) {
    auto* axis = spec.add_matrix();
    axis->set_key(key);
    for (int i = 1; i <= values; ++i) axis->add_values()->set_number_value(i);
  };
  add_axis("ranks", 1);
  add_axis("max_steps", 1000);
  add_axis("comm_timeout_s", 100);
  for (int i = 0; i < 1000; ++i) {
    auto& fields = *spec.add_exclude()->mutable_fields();
    fields["max_steps"].set_number_value(1 + i);
    fields["comm_timeout_s"].set_number_value(1 + i % 100);
  }
  // The second half of the requests makes the server compare every cell with every entry.
  v1::PlanStudyRequest costly = plan;
  costly.mutable_spec()->clear_exclude();
  for (int i = 0; i < 1000; ++i)
    (*costly.mutable_spec()->add_exclude()->mutable_fields())["global_batch"].set_number_value(100'000 + i);
  std::atomic<bool> stop = false;
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&, i] {
      while (!stop) {
        v1::PlanStudyResponse planned;
        (void)v1::StudyService::NewStub(service.Channel())
            ->PlanStudy(Context(60).get(), i % 2 == 0 ? plan : costly, &planned);
      }
    });
  }
  const double start = Now();
  int answered = 0;
  // Wait for longer than the worker timeout.
  while (Now() - start < 25) answered += service.Answers() ? 1 : 0;
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_GE(answered, 5);
  EXPECT_EQ(service.Attempts(run).size(), 1u) << service.log();
  EXPECT_EQ(service.Runs(study)[0]["state"], "RUNNING");
}

TEST(FrontCalls, ManyWatchesOfALargeStudyDelayNobody) {
  Front service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(LargeStudy());
  v1::WatchStudyRequest request;
  request.set_name(study);
  struct Watch {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::WatchStudyResponse>> reader;
  };
  std::vector<Watch> watches;
  std::shared_ptr<grpc::Channel> channel;
  v1::WatchStudyResponse state;
  for (int i = 0; i < 300; ++i) {
    if (i % 100 == 0) channel = service.Channel();
    Watch watch{channel, Context(60), nullptr};
    watch.reader = v1::StudyService::NewStub(channel)->WatchStudy(watch.context.get(), request);
    watches.push_back(std::move(watch));
    if (i % 100 < 99) continue;
    // More than 256 calls of one user that have not begun would be refused.
    for (auto begun = watches.end() - 100; begun != watches.end(); ++begun)
      EXPECT_TRUE(begun->reader->Read(&state));
  }
  // Each hold and release is a change, which all watches get.
  std::atomic<bool> stop = false;
  std::atomic<int> changes = 0;
  std::thread changing([&] {
    const auto stub = v1::StudyService::NewStub(service.Channel());
    v1::HoldStudyRequest hold;
    v1::ReleaseStudyRequest release;
    hold.set_name(study);
    release.set_name(study);
    while (!stop) {
      v1::HoldStudyResponse held;
      v1::ReleaseStudyResponse released;
      EXPECT_TRUE(stub->HoldStudy(Context().get(), hold, &held).ok());
      EXPECT_TRUE(stub->ReleaseStudy(Context().get(), release, &released).ok());
      changes += 2;
    }
  });
  const auto stub = v1::ClusterService::NewStub(service.Channel());
  double longest = 0;
  for (int calls = 0; calls < 50 || changes < 20; ++calls) {
    const double start = Now();
    v1::GetClusterResponse cluster;
    ASSERT_TRUE(stub->GetCluster(Context().get(), {}, &cluster).ok());
    longest = std::max(longest, Now() - start);
  }
  stop = true;
  changing.join();
  // scalelab-bench measures the latencies; this limit shows only that nothing hangs.
  EXPECT_LT(longest, 2);
  for (Watch& watch : watches) EXPECT_TRUE(watch.reader->Read(&state)) << "a change";
  for (Watch& watch : watches) watch.context->TryCancel();
  EXPECT_TRUE(service.Answers());
}

// Returns the largest growth of the service's memory while `flood(port, seconds, sent)` runs.
template <typename Function>
int64_t GrowthUnder(const Front& service, double seconds, const Function& flood) {
  const int64_t before = service.Memory();
  int64_t most = 0;
  flood(service.port(), seconds, [&] { most = std::max(most, service.Memory() - before); });
  return most;
}

// Without limits the memory grows as long as the flood lasts. With them, it grows by up to 240 MB.
constexpr int64_t kMuch = int64_t{400} << 20;

TEST(FrontMemory, EndlessHeadersWithoutATokenAreCutOff) {
  Front service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  EXPECT_LT(GrowthUnder(service, 8, FloodWithHeaders), kMuch);
  EXPECT_TRUE(service.Answers());
}

TEST(FrontMemory, EndlessResetCallsWithoutATokenAreCutOff) {
  Front service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  EXPECT_LT(GrowthUnder(service, 12, FloodWithResets), kMuch);
  EXPECT_TRUE(service.Answers());
}

TEST(FrontMemory, EndlessCallsWithoutATokenAreCutOff) {
  Front service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  EXPECT_LT(GrowthUnder(service, 12, FloodWithCalls), kMuch);
  EXPECT_TRUE(service.Answers());
}

// Returns the largest memory that a process has had.
int64_t PeakMemory(pid_t pid) {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  const size_t at = status.find("VmHWM:");
  return at == std::string::npos ? 0 : std::atoll(status.c_str() + at + 6) << 10;
}

// A command of 2.8 MB that is copied into each of the 2,000 cells takes 5.6 GB.
TEST(FrontMemory, APlanOfALongCommandAndManyCellsCopiesNoCommand) {
  Front service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  v1::PlanStudyRequest request;
  v1::StudySpec& spec = *request.mutable_spec();
  spec.set_study("long");
  spec.set_repeats(1);
  auto& fixed = *spec.mutable_fixed()->mutable_fields();
  fixed["engine"].set_string_value("custom");
  fixed["ranks"].set_number_value(1);
  auto& command = *fixed["command"].mutable_list_value();
  command.add_values()->set_string_value("true");
  command.add_values()->set_string_value(std::string(2'800'000, 'x'));
  for (const auto& [key, values] : {std::pair("max_steps", 1000), std::pair("comm_timeout_s", 2)}) {
    auto* axis = spec.add_matrix();
    axis->set_key(key);
    for (int i = 1; i <= values; ++i) axis->add_values()->set_number_value(i);
  }
  const auto studies = v1::StudyService::NewStub(service.Channel());
  const int64_t before = PeakMemory(service.pid());
  ASSERT_GT(before, 0);
  v1::PlanStudyResponse plan;
  const grpc::Status status = studies->PlanStudy(Context(60).get(), request, &plan);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(plan.cells_size(), 2000);
  EXPECT_LT(PeakMemory(service.pid()) - before, int64_t{200} << 20);
}

TEST(FrontMemory, ALargeRequestKeepsNoMemory) {
  constexpr int64_t kSmall = 100'000'000;
  Front service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  EXPECT_LT(service.Memory(), kSmall);
  const std::string file = service.File("large.yaml", LargeStudy());
  // The C library keeps the memory that the requests have freed, until the service returns it to the system.
  for (int i = 0; i < 20 && service.Memory() < kSmall; ++i) {
    std::vector<std::thread> clients;
    for (int c = 0; c < 3; ++c)
      clients.emplace_back([&] { EXPECT_EQ(service.Run({"study", "plan", file}).code, 0); });
    for (std::thread& client : clients) client.join();
  }
  EXPECT_GE(service.Memory(), kSmall) << "the requests are not large";
  EXPECT_TRUE(Eventually([&] { return service.Memory() < kSmall; })) << service.Memory();
}

}  // namespace
}  // namespace scalelab::e2e
