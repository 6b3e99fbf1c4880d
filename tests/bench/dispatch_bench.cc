#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/time/clock.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/service_bench.h"
#include "tests/bench/simulated_worker.h"

namespace scalelab::bench {
namespace {

constexpr double kTarget = 10'000;   // completions per second
constexpr double kAssignTarget = 5;  // ms
constexpr int kWorkers = 32;

// Completes `runs` runs on each of 32 simulated workers, which accept up to `queue_limit` runs in advance.
std::vector<Figure> Measure(const std::string& name, const std::string& directory, int runs,
                            int queue_limit) {
  BenchServer server(directory, true);
  auto studies = v1::StudyService::NewStub(server.Connect());
  for (int s = 0; s < kWorkers; ++s) {
    v1::CreateStudyRequest request;
    *request.mutable_spec() = BenchStudy(runs);
    v1::CreateStudyResponse response;
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    if (!studies->CreateStudy(&context, request, &response).ok()) return {};
  }
  while (server.scheduler().jobs().size() < kWorkers)
    std::this_thread::yield();  // another thread submits the runs
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
  for (const auto& [token, secret] : server.scheduler().jobs()) {
    workers.push_back(
        std::make_unique<SimulatedWorker>(server.Connect(), token, secret, static_cast<int>(workers.size())));
  }
  std::mutex mutex;
  std::condition_variable changed;
  int working = kWorkers;
  const absl::Time start = absl::Now();
  for (auto& worker : workers) {
    worker->Work(queue_limit, [&] {
      std::lock_guard lock(mutex);
      --working;
      changed.notify_one();
    });
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return working == 0; });
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  int completed = 0;
  std::vector<double> assign;
  for (const auto& worker : workers) {
    completed += worker->completed();
    assign.insert(assign.end(), worker->assign_seconds().begin(), worker->assign_seconds().end());
  }
  const double rate = completed / seconds;
  std::vector<Figure> figures = {{name + "/completions", rate, "1/s", "target", kTarget, rate / kTarget}};
  if (completed != kWorkers * runs) figures[0].name += "_INCOMPLETE";
  // A worker that accepts runs in advance does not wait for an assignment.
  if (queue_limit == 0 && !assign.empty()) {
    std::sort(assign.begin(), assign.end());
    const double p99 = 1e3 * assign[assign.size() * 99 / 100];
    figures.push_back({name + "/assign_p99", p99, "ms", "target", kAssignTarget, p99 / kAssignTarget});
  }
  return figures;
}

}  // namespace

std::vector<Figure> RunDispatchBench(const BenchOptions& options) {
  const int runs = std::max(10, static_cast<int>(1000 * options.scale));
  std::vector<Figure> figures = Measure("dispatch", options.directory, runs, 32);
  const std::vector<Figure> single = Measure("dispatch_one_at_a_time", options.directory, runs, 0);
  figures.insert(figures.end(), single.begin(), single.end());
  return figures;
}

}  // namespace scalelab::bench
