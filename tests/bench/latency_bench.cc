#include <grpcpp/alarm.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "scalelab/v1/cluster.grpc.pb.h"
#include "scalelab/v1/result.grpc.pb.h"
#include "scalelab/v1/run.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "server/process_limits.h"
#include "tests/bench/daemon.h"
#include "tests/bench/service_bench.h"
#include "tests/fakes/hanging_directory.h"

namespace scalelab::bench {
namespace {

constexpr int kClients = 64;
constexpr int kHanging = 4;
constexpr int kThinkers = 2000;
constexpr int kUsers = 20;  // of the thinking clients; at most 256 calls of one user may wait for a thread
constexpr double kTargetMs = 50, kThinkTargetMs = 500;
constexpr std::chrono::seconds kCallLimit{60};

using Latencies = std::map<std::string, std::vector<double>>;  // by method, in ms

// The objects that the clients query.
struct Subjects {
  std::string study;    // a study with many short runs, one after another
  std::string run;      // of that study
  std::string printer;  // a run with output
};

struct Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : studies(v1::StudyService::NewStub(channel)),
        runs(v1::RunService::NewStub(channel)),
        cluster(v1::ClusterService::NewStub(channel)),
        results(v1::ResultService::NewStub(channel)) {}
  std::unique_ptr<v1::StudyService::Stub> studies;
  std::unique_ptr<v1::RunService::Stub> runs;
  std::unique_ptr<v1::ClusterService::Stub> cluster;
  std::unique_ptr<v1::ResultService::Stub> results;
};

// Reads the output of a run. Returns whether the call succeeded.
bool ReadLog(Stubs& stubs, const std::string& run, std::chrono::milliseconds limit) {
  v1::ReadRunLogRequest request;
  request.set_name(run);
  const auto context = Within(limit);
  const auto reader = stubs.runs->ReadRunLog(context.get(), request);
  v1::ReadRunLogResponse piece;
  while (reader->Read(&piece)) {
  }
  return reader->Finish().ok();
}

struct Method {
  const char* name;
  std::function<bool(Stubs&, const Subjects&)> call;
};

const std::vector<Method>& Methods() {
  static const auto& methods = *new std::vector<Method>{
      {"GetStudy",
       [](Stubs& stubs, const Subjects& subjects) {
         v1::GetStudyRequest request;
         request.set_name(subjects.study);
         v1::GetStudyResponse response;
         return stubs.studies->GetStudy(Within(kCallLimit).get(), request, &response).ok();
       }},
      {"ListStudies",
       [](Stubs& stubs, const Subjects&) {
         v1::ListStudiesResponse response;
         return stubs.studies->ListStudies(Within(kCallLimit).get(), {}, &response).ok();
       }},
      {"ExplainStudy",
       [](Stubs& stubs, const Subjects& subjects) {
         v1::ExplainStudyRequest request;
         request.set_name(subjects.study);
         v1::ExplainStudyResponse response;
         return stubs.studies->ExplainStudy(Within(kCallLimit).get(), request, &response).ok();
       }},
      {"ListRuns",
       [](Stubs& stubs, const Subjects& subjects) {
         v1::ListRunsRequest request;
         request.set_parent(subjects.study);
         request.set_page_size(100);
         v1::ListRunsResponse response;
         return stubs.runs->ListRuns(Within(kCallLimit).get(), request, &response).ok();
       }},
      {"GetRun",
       [](Stubs& stubs, const Subjects& subjects) {
         v1::GetRunRequest request;
         request.set_name(subjects.run);
         v1::GetRunResponse response;
         return stubs.runs->GetRun(Within(kCallLimit).get(), request, &response).ok();
       }},
      {"ReadRunLog",
       [](Stubs& stubs, const Subjects& subjects) { return ReadLog(stubs, subjects.printer, kCallLimit); }},
      {"GetCluster", [](Stubs& stubs, const Subjects&) {
         v1::GetClusterResponse response;
         return stubs.cluster->GetCluster(Within(kCallLimit).get(), {}, &response).ok();
       }}};
  return methods;
}

// Runs clients that call one method after another for some seconds, each on its own connection.
Latencies AtFullSpeed(const Daemon& daemon, const Subjects& subjects, double seconds, int* failed) {
  std::mutex mutex;
  Latencies all;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      Stubs stubs(daemon.Connect());
      Methods()[0].call(stubs, subjects);  // connects
      Latencies mine;
      int errors = 0;
      const double end = e2e::Now() + seconds;
      for (size_t m = c; e2e::Now() < end; ++m) {
        const Method& method = Methods()[m % Methods().size()];
        const double start = e2e::Now();
        errors += method.call(stubs, subjects) ? 0 : 1;
        mine[method.name].push_back(1e3 * (e2e::Now() - start));
      }
      std::lock_guard lock(mutex);
      *failed += errors;
      for (auto& [name, values] : mine) all[name].insert(all[name].end(), values.begin(), values.end());
    });
  }
  for (std::thread& client : clients) client.join();
  return all;
}

// A client that calls ListRuns and GetRun in turn, and waits for a second after each answer.
class Thinker {
 public:
  // `authorization`: Daemon::AuthorizationOf the client's user.
  Thinker(const std::shared_ptr<grpc::Channel>& channel, std::string authorization, const Subjects& subjects,
          std::atomic<bool>& stop, std::function<void()> stopped)
      : stub_(v1::RunService::NewStub(channel)),
        authorization_(std::move(authorization)),
        stop_(stop),
        stopped_(std::move(stopped)) {
    list_.set_parent(subjects.study);
    list_.set_page_size(100);
    get_.set_name(subjects.run);
  }
  void After(std::chrono::milliseconds pause) {
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + pause, [this](bool) { Call(); });
  }
  const Latencies& latencies() const { return latencies_; }
  int failed() const { return failed_; }

 private:
  void Call() {
    if (stop_) return stopped_();
    context_ = Within(kCallLimit);
    context_->AddMetadata("authorization", authorization_);
    start_ = e2e::Now();
    const bool list = listed_ = !listed_;
    const auto done = [this, list](const grpc::Status& status) {
      if (!first_) latencies_[list ? "ListRuns" : "GetRun"].push_back(1e3 * (e2e::Now() - start_));
      first_ = false;  // the first call has made the connection
      failed_ += status.ok() ? 0 : 1;
      After(std::chrono::seconds(1));
    };
    list ? stub_->async()->ListRuns(context_.get(), &list_, &listed_runs_, done)
         : stub_->async()->GetRun(context_.get(), &get_, &got_run_, done);
  }

  std::unique_ptr<v1::RunService::Stub> stub_;
  const std::string authorization_;
  std::atomic<bool>& stop_;
  std::function<void()> stopped_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::Alarm> alarm_;
  v1::ListRunsRequest list_;
  v1::ListRunsResponse listed_runs_;
  v1::GetRunRequest get_;
  v1::GetRunResponse got_run_;
  Latencies latencies_;
  double start_ = 0;
  bool listed_ = false, first_ = true;
  int failed_ = 0;
};

Latencies Thinking(const Daemon& daemon, const Subjects& subjects, int count, double seconds, int* failed) {
  std::atomic<bool> stop = false;
  std::atomic<int> running = count;
  std::vector<std::unique_ptr<Thinker>> thinkers;
  for (int i = 0; i < count; ++i) {
    const std::string authorization = daemon.AuthorizationOf(absl::StrCat("user-", i % kUsers));
    thinkers.push_back(
        std::make_unique<Thinker>(daemon.Connect(), authorization, subjects, stop, [&] { --running; }));
    thinkers.back()->After(std::chrono::milliseconds(i * 2000 / count));
  }
  e2e::Pause(seconds);
  stop = true;
  e2e::Eventually([&] { return running == 0; }, 120);
  Latencies all;
  for (const auto& thinker : thinkers) {
    *failed += thinker->failed();
    for (const auto& [name, values] : thinker->latencies())
      all[name].insert(all[name].end(), values.begin(), values.end());
  }
  return all;
}

void AddFigures(const std::string& phase, Latencies latencies, int failed, double target,
                std::vector<Figure>& figures) {
  auto& all = latencies["all"];
  for (const auto& [name, values] : latencies) {
    if (name != "all") all.insert(all.end(), values.begin(), values.end());
  }
  for (auto& [name, values] : latencies) {
    if (values.empty()) continue;
    std::ranges::sort(values);
    const std::string prefix = absl::StrCat("service/", phase, "/", name, "/");
    const double p99 = values[values.size() * 99 / 100];
    figures.push_back({prefix + "p50", values[values.size() / 2], "ms", "", 0, 0});
    figures.push_back({prefix + "p99", p99, "ms", "target", target, p99 / target});
    figures.push_back({prefix + "max", values.back(), "ms", "", 0, 0});
  }
  figures.push_back(
      {absl::StrCat("service/", phase, "/calls"), static_cast<double>(all.size()), "", "", 0, 0});
  figures.push_back(
      {absl::StrCat("service/", phase, "/failed_calls"), static_cast<double>(failed), "", "", 0, 0});
}

v1::StudySpec Printers(int count) {
  v1::StudySpec spec = CommandStudy({"sh", "-c", "echo started; exec sleep 3600"}, count);
  spec.set_allocation(v1::StudySpec::PER_RUN);
  return spec;
}

// Waits until all runs of the study have written something. Returns their names.
std::vector<std::string> Started(const Daemon& daemon, const std::string& study, int count) {
  Stubs stubs(daemon.Connect());
  v1::ListRunsRequest request;
  request.set_parent(study);
  std::vector<std::string> names;
  e2e::Eventually(
      [&] {
        v1::ListRunsResponse runs;
        names.clear();
        if (!stubs.runs->ListRuns(Within(kCallLimit).get(), request, &runs).ok()) return false;
        for (const v1::Run& run : runs.runs()) {
          if (ReadLog(stubs, run.name(), kCallLimit)) names.push_back(run.name());
        }
        return static_cast<int>(names.size()) == count;
      },
      120);
  return names;
}

std::string DirectoryOf(const Daemon& daemon, const std::string& run) {
  Stubs stubs(daemon.Connect());
  v1::GetRunRequest request;
  request.set_name(run);
  v1::GetRunResponse response;
  if (!stubs.runs->GetRun(Within(kCallLimit).get(), request, &response).ok() ||
      response.run().attempts().empty())
    return "";
  return response.run().attempts(0).directory();
}

// Until it is destroyed, makes the directories of the runs hang, and runs clients that read outputs in them.
class Hanging {
 public:
  Hanging(const Daemon& daemon, const std::vector<std::string>& runs) {
    for (const std::string& run : runs) {
      auto mounted = HangingDirectory::Mount(DirectoryOf(daemon, run));
      if (!mounted.ok()) {
        std::cerr << "scalelab-bench: no directory hangs: " << mounted.status().message() << "\n";
        return;
      }
      directories_.push_back(*std::move(mounted));
      readers_.emplace_back([this, &daemon, run] {
        Stubs stubs(daemon.Connect());
        while (!stop_) ReadLog(stubs, run, std::chrono::seconds(2));
      });
    }
  }
  ~Hanging() {
    stop_ = true;
    for (std::thread& reader : readers_) reader.join();
  }
  bool all() const { return directories_.size() == kHanging; }

 private:
  std::vector<std::unique_ptr<HangingDirectory>> directories_;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> readers_;
};

}  // namespace

std::vector<Figure> RunServiceBench(const BenchOptions& options) {
  if (const auto files = server::RaiseFileLimit(); !files.ok() || *files < 3 * kThinkers) {
    std::fprintf(stderr, "scalelab-bench: this process needs %d open files; raise `ulimit -n`\n",
                 3 * kThinkers);
    return {};
  }
  const Daemon daemon(options.directory, {"--local-slots", absl::StrCat(kHanging + 2)});
  Subjects subjects;
  const std::vector<std::string> hang = Started(daemon, daemon.Submit(Printers(kHanging)), kHanging);
  const std::vector<std::string> print = Started(daemon, daemon.Submit(Printers(1)), 1);
  subjects.study = daemon.Submit(CommandStudy(
      {"sh", "-c", R"(sleep 0.2; echo '{"time":1,"event":"finish"}' >> "$SCALELAB_EVENTS")"}, 10'000));
  if (hang.size() != kHanging || print.size() != 1) {
    std::fprintf(stderr, "scalelab-bench: the runs do not start\n");
    return {};
  }
  subjects.printer = print[0];
  subjects.run = subjects.study + "/runs/" + [&] {
    Stubs stubs(daemon.Connect());
    v1::ListRunsRequest request;
    request.set_parent(subjects.study);
    request.set_page_size(1);
    v1::ListRunsResponse runs;
    (void)stubs.runs->ListRuns(Within(kCallLimit).get(), request, &runs);
    const std::string name = runs.runs().empty() ? "" : runs.runs(0).name();
    return name.substr(name.rfind('/') + 1);
  }();
  const double seconds = 10 * options.scale;
  std::vector<Figure> figures;
  int failed = 0;
  Latencies latencies = AtFullSpeed(daemon, subjects, seconds, &failed);
  AddFigures("quiet", std::move(latencies), failed, kTargetMs, figures);
  {
    const Hanging hanging(daemon, hang);
    if (hanging.all()) {
      failed = 0;
      latencies = AtFullSpeed(daemon, subjects, seconds, &failed);
      AddFigures("hanging_directories", std::move(latencies), failed, kTargetMs, figures);
    }
  }
  failed = 0;
  const int thinkers = std::max(1, static_cast<int>(kThinkers * std::min(1.0, options.scale)));
  latencies = Thinking(daemon, subjects, thinkers, 5 + 15 * options.scale, &failed);
  AddFigures("2000_thinking_clients", std::move(latencies), failed, kThinkTargetMs, figures);
  return figures;
}

}  // namespace scalelab::bench
