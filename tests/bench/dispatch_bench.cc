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

std::vector<Figure> RunDispatchBench(const BenchOptions& options) {
  constexpr int kWorkers = 32;
  const int runs = std::max(10, static_cast<int>(1000 * options.scale));
  BenchServer server(options.directory, true);
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
    std::this_thread::yield();  // submitted by another thread
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
    worker->Work([&] {
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
  std::vector<Figure> figures = {{"dispatch/completions", rate, "1/s", "target", 5000, rate / 5000}};
  if (completed != kWorkers * runs) figures[0].name = "dispatch/completions_INCOMPLETE";
  if (!assign.empty()) {
    std::sort(assign.begin(), assign.end());
    const double p99 = assign[assign.size() * 99 / 100];
    figures.push_back({"dispatch/assign_p99", p99 * 1e3, "ms", "target", 20, p99 * 1e3 / 20});
  }
  return figures;
}

}  // namespace scalelab::bench
