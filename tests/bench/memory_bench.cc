#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "server/process_limits.h"
#include "tests/bench/daemon.h"
#include "tests/bench/service_bench.h"
#include "tests/bench/simulated_worker.h"
#include "tests/e2e/raw_connection.h"

namespace scalelab::bench {
namespace {

// Bounds in MB.
constexpr double kIdle = 50, kWorkers = 300, kAfter = 100;
constexpr double kSettle = 60;  // seconds

// Records the largest resident memory of a process, a hundred times a second.
class Peak {
 public:
  explicit Peak(const Daemon& daemon)
      : thread_([this, &daemon] {
          while (!stop_) {
            most_ = std::max<double>(most_, daemon.Memory());
            e2e::Pause(0.01);
          }
        }) {}
  ~Peak() { Stop(); }
  double Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return most_;
  }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<double> most_ = 0;
  std::thread thread_;
};

struct Scene {
  const BenchOptions& options;
  const Daemon& daemon;
  std::string study;
  int Scaled(int count) const { return std::max(1, static_cast<int>(count * std::min(1.0, options.scale))); }
};

// Writes a program that replaces scalelab-worker and sends no reports; the benchmark sends them. Returns its path.
std::string SilentWorker(const std::string& directory) {
  const std::string path = directory + "/silent-worker";
  std::ofstream(path) << "#!/bin/sh\nexec sleep 3600\n";
  chmod(path.c_str(), 0700);
  return path;
}

struct Case {
  std::string name;
  std::vector<std::string> flags;
  int files = 0;     // as in Daemon
  double peak = 0;   // bound; 0: none
  double after = 0;  // bound; 0: none
  // Runs the case. Returns whether the service behaved correctly.
  std::function<bool(Scene&)> disturb;
};

// --- Workers

constexpr int kKeys = 8;
constexpr int kLines = 4096;  // lines of 8 values, about 1 MiB in total

// An EventBatch without its token.
grpc::Slice BacklogBytes() {
  v1::EventBatch batch;
  batch.set_end_position(kLines * 256);
  batch.set_end_line(kLines);
  for (int k = 0; k < kKeys; ++k) {
    v1::PointColumn& column = *batch.add_columns();
    column.set_key(absl::StrCat("step/metric_", k));
    for (int64_t line = 0; line < kLines; ++line) {
      column.add_line(line);
      column.add_step(line);
      column.add_time(1.7e9 + 0.01 * static_cast<double>(line));
      column.add_value(1.0 / static_cast<double>(line * kKeys + k + 1));
    }
  }
  return grpc::Slice(batch.SerializeAsString());
}

// Delivers the backlog of one worker, with the backoff of a real one. All senders share the bytes of the backlog.
class BacklogSender {
 public:
  BacklogSender(std::shared_ptr<grpc::Channel> channel, const SimulatedWorker& worker,
                const std::string& attempt, const grpc::Slice& backlog, std::function<void()> delivered)
      : stub_(std::move(channel)), worker_(worker), delivered_(std::move(delivered)) {
    // Encode the token, preceded by the length of the batch, in the wire format of protobuf.
    v1::EventBatch batch;
    batch.set_token(attempt);
    const std::string token = batch.SerializeAsString();
    std::string prefix(1, '\x0a');
    for (size_t length = token.size() + backlog.size(); length > 0 || prefix.size() == 1; length >>= 7)
      prefix.push_back(static_cast<char>((length & 0x7f) | (length > 0x7f ? 0x80 : 0)));
    const grpc::Slice slices[] = {grpc::Slice(prefix + token), backlog};
    request_ = grpc::ByteBuffer(slices, 2);
  }
  void Send() {
    context_ = worker_.Context();
    stub_.UnaryCall(context_.get(), "/scalelab.v1.WorkerService/ReportEvents", grpc::StubOptions(), &request_,
                    &response_, [this](const grpc::Status& status) {
                      if (status.ok()) return delivered_();
                      pause_ = std::min(2 * pause_, std::chrono::milliseconds(5000));
                      alarm_ = std::make_unique<grpc::Alarm>();
                      alarm_->Set(std::chrono::system_clock::now() + pause_, [this](bool) { Send(); });
                    });
  }

 private:
  grpc::GenericStub stub_;
  const SimulatedWorker& worker_;
  std::function<void()> delivered_;
  grpc::ByteBuffer request_, response_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::chrono::milliseconds pause_{25};
  std::unique_ptr<grpc::Alarm> alarm_;
};

// Each worker is attached to an allocation of its own. All of them send their backlog at once, as after a
// restart of scalelabd.
bool AttachWorkers(Scene& scene) {
  const int count = scene.Scaled(1000);
  v1::StudySpec spec = CommandStudy({"true"}, count);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  scene.study = scene.daemon.Submit(spec);
  std::vector<std::pair<std::string, std::string>> allocations;
  if (!e2e::Eventually(
          [&] {
            allocations = scene.daemon.Allocations();
            return static_cast<int>(allocations.size()) >= count;
          },
          120)) {
    std::fprintf(stderr, "scalelab-bench: only %zu of %d allocations exist\n", allocations.size(), count);
    return false;
  }
  const grpc::Slice backlog = BacklogBytes();
  std::atomic<int> delivered = 0;
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
  std::vector<std::unique_ptr<BacklogSender>> senders;
  for (const auto& [token, secret] : allocations) {
    const auto channel = scene.daemon.Connect();
    workers.push_back(
        std::make_unique<SimulatedWorker>(channel, token, secret, static_cast<int>(workers.size())));
    const std::string attempt = workers.back()->Attach();
    senders.push_back(
        std::make_unique<BacklogSender>(channel, *workers.back(), attempt, backlog, [&] { ++delivered; }));
  }
  for (auto& sender : senders) sender->Send();
  const bool all = e2e::Eventually([&] { return delivered == count; }, 300);
  if (!all) {
    std::fprintf(stderr, "scalelab-bench: only %d of %d backlogs are delivered\n", delivered.load(), count);
    std::exit(1);  // calls in flight use the senders, so do not destroy them
  }
  return true;
}

// --- Watches

struct Watch {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientReader<v1::WatchStudyResponse>> reader;
};

Watch OpenWatch(const std::shared_ptr<grpc::Channel>& channel, const std::string& study) {
  v1::WatchStudyRequest request;
  request.set_name(study);
  Watch watch{Within(std::chrono::minutes(5)), nullptr};
  watch.reader = v1::StudyService::NewStub(channel)->WatchStudy(watch.context.get(), request);
  return watch;
}

// Opens `count` watches, `per_connection` of them on each connection, and ends them when all are open. Returns the number of
// watches that have received a state of the study.
int OpenAndEndWatches(const Scene& scene, int count, int per_connection) {
  constexpr size_t kGroup = 100;  // at most 256 calls of one user may wait for a thread
  std::vector<Watch> watches;
  std::shared_ptr<grpc::Channel> channel;
  v1::WatchStudyResponse state;
  size_t begun = 0;
  int shown = 0;
  for (int i = 0; i < count; ++i) {
    if (i % per_connection == 0) channel = scene.daemon.Connect();
    watches.push_back(OpenWatch(channel, scene.study));
    if (watches.size() - begun < kGroup && i + 1 < count) continue;
    for (; begun < watches.size(); ++begun) shown += watches[begun].reader->Read(&state) ? 1 : 0;
  }
  for (Watch& watch : watches) {
    watch.context->TryCancel();
    watch.reader->Finish();
  }
  return shown;
}

// Clients that open a watch over a connection of their own and then disconnect.
bool DropWatches(Scene& scene) {
  scene.study = scene.daemon.Submit(CommandStudy({"true"}, 100));
  constexpr int kWave = 1000;
  int shown = 0;
  for (int wave = 0; wave < scene.Scaled(10); ++wave) shown += OpenAndEndWatches(scene, kWave, 1);
  if (shown < kWave * scene.Scaled(10))
    std::fprintf(stderr, "scalelab-bench: %d watches got no state\n", kWave * scene.Scaled(10) - shown);
  return scene.daemon.Answers();
}

bool WatchManyCells(Scene& scene) {
  v1::StudySpec spec;
  spec.set_study("cells");
  (*spec.mutable_fixed()->mutable_fields())["model"].set_string_value("resnet20");
  (*spec.mutable_fixed()->mutable_fields())["dataset"].set_string_value("synthetic");
  for (const auto& [key, values] : {std::pair("ranks", 1), std::pair("max_steps", scene.Scaled(1000)),
                                    std::pair("comm_timeout_s", 100)}) {
    auto* axis = spec.add_matrix();
    axis->set_key(key);
    for (int i = 1; i <= values; ++i) axis->add_values()->set_number_value(i);
  }
  scene.study = scene.daemon.Submit(spec);
  constexpr int kWatches = 300;
  return OpenAndEndWatches(scene, kWatches, 100) == kWatches && scene.daemon.Answers();
}

// --- Clients without a token

bool FloodHeaders(Scene& scene) {
  e2e::FloodWithHeaders(scene.daemon.tcp_port(), 10 * scene.options.scale, [] {});
  return scene.daemon.Answers();
}

bool FloodResets(Scene& scene) {
  e2e::FloodWithResets(scene.daemon.tcp_port(), 10 * scene.options.scale, [] {});
  return scene.daemon.Answers();
}

bool ExhaustDescriptors(Scene& scene) {
  std::vector<int> open;
  for (int i = 0; i < 1200; ++i) open.push_back(e2e::ConnectTcp(scene.daemon.tcp_port()));
  const bool meanwhile = scene.daemon.Answers();
  for (const int fd : open) {
    if (fd >= 0) close(fd);
  }
  return meanwhile && scene.daemon.Answers();
}

std::vector<Figure> Run(const Case& one, const BenchOptions& options) {
  const Daemon daemon(options.directory, one.flags, one.files);
  Scene scene{options, daemon, ""};
  daemon.Answers();
  const double before = daemon.Memory();
  std::vector<Figure> figures = {
      {absl::StrCat("memory/", one.name, "/before"), before, "MB", "bound", kIdle, before / kIdle}};
  if (one.disturb == nullptr) return figures;
  Peak peak(daemon);
  const bool served = one.disturb(scene);
  const double most = peak.Stop();
  if (!scene.study.empty()) daemon.Cancel(scene.study);
  e2e::Eventually([&] { return daemon.Memory() < one.after; }, kSettle);
  const double after = daemon.Memory();
  figures.push_back({absl::StrCat("memory/", one.name, "/peak"), most, "MB", one.peak > 0 ? "bound" : "",
                     one.peak, one.peak > 0 ? most / one.peak : 0});
  figures.push_back(
      {absl::StrCat("memory/", one.name, "/after"), after, "MB", "bound", one.after, after / one.after});
  if (!served) figures.back().name += "_NOT_SERVED";
  return figures;
}

}  // namespace

std::vector<Figure> RunMemoryBench(const BenchOptions& options) {
  if (const auto files = server::RaiseFileLimit(); !files.ok() || *files < 8000) {
    std::fprintf(stderr, "scalelab-bench: this process needs 8,000 open files; raise `ulimit -n`\n");
    return {};
  }
  const std::string worker = SilentWorker(options.directory);
  const std::vector<std::string> silent = {"--worker-program", worker, "--local-slots", "1"};
  const std::vector<Case> cases = {
      {"idle", silent, 0, 0, 0, nullptr},
      {"workers", {"--worker-program", worker, "--local-slots", "1000"}, 0, kWorkers, kAfter, AttachWorkers},
      {"dropped_watches", silent, 0, 0, kAfter, DropWatches},
      {"watches_of_100000_cells", silent, 0, 0, kAfter, WatchManyCells},
      {"continuation_flood", silent, 0, 0, kAfter, FloodHeaders},
      {"reset_flood", silent, 0, 0, kAfter, FloodResets},
      {"connections_at_1024_files", silent, 1024, 0, kAfter, ExhaustDescriptors}};
  std::vector<Figure> figures;
  for (const Case& one : cases) {
    if (!options.cases.empty() && std::ranges::find(options.cases, one.name) == options.cases.end()) continue;
    const std::vector<Figure> measured = Run(one, options);
    figures.insert(figures.end(), measured.begin(), measured.end());
  }
  return figures;
}

}  // namespace scalelab::bench
