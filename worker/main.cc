// scalelab-worker: one per node of an allocation. Wiring only; agent.h is where to start reading.
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/agent.h"
#include "worker/grpc_coordinator_client.h"
#include "worker/lock_file.h"
#include "worker/node_info.h"
#include "worker/options.h"

namespace scalelab::worker {
namespace {

// Only SIGTERM and SIGINT ask the worker to leave; both come as events, to the loop.
int OpenSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

int Serve(const WorkerOptions& options, const SpawnerHandle& spawner) {
  const int signals = OpenSignals();  // before gRPC makes threads, which inherit the mask
  EventLoop loop;
  int exit_code = 1;
  SpawnerProcesses processes(loop, spawner, [&] {
    spdlog::critical("The process that starts others is gone: leaving");
    loop.Stop();
  });
  const auto client = NewGrpcCoordinatorClient(options.coordinator);
  EventFollower follower(loop, [&](const v1::ReportEventsRequest& request, EventFollower::Answer answer) {
    client->ReportEvents(request,
                         [&loop, answer = std::move(answer)](absl::StatusOr<v1::ReportEventsResponse> got) {
                           loop.Post([answer, got = std::move(got)] { answer(got); });
                         });
  });
  const Frameworks frameworks = NewFrameworks(options);
  const LaunchHost launch = NewLaunchHost(options);
  Provenance provenance(loop, {options.own_program, options.rank_program, options.trainer_program},
                        launch.environment);
  const AttemptHost host{
      processes, follower, provenance, frameworks, launch, options.node, options.coordinator.allocation};
  Agent agent(loop, *client, host, {options.node_index, options.give_up_after}, [&](Agent::Exit exit) {
    exit_code = exit == Agent::Exit::kDone ? 0 : 1;
    loop.Stop();
  });
  loop.Watch(signals, [&] {
    signalfd_siginfo info;
    while (read(signals, &info, sizeof info) > 0) agent.Leave();
  });
  provenance.AskTrainer(processes, [&] { agent.Refresh(); });
  agent.Start();
  loop.Run();
  provenance.Flush();
  return exit_code;
}

int Main(int argc, char** argv) {
  WorkerOptions options;
  if (int code = 0; !ParseOptions(argc, argv, &options, &code)) return code;
  syscall(SYS_close_range, 3u, ~0u,
          1u << 2 /* CLOSE_RANGE_CLOEXEC */);  // nothing that came with us goes to ranks
  if (!options.lock_file.empty()) {
    const absl::StatusOr<int> lock = LockFile(options.lock_file);
    if (!lock.ok()) return fprintf(stderr, "scalelab-worker: %s\n", lock.status().ToString().c_str()), 1;
  }
  const absl::StatusOr<SpawnerHandle> spawner =
      ForkSpawner();  // before any thread exists; it holds the lock too
  if (!spawner.ok()) return fprintf(stderr, "scalelab-worker: %s\n", spawner.status().ToString().c_str()), 1;
  spdlog::set_default_logger(spdlog::stderr_color_mt("worker"));
  return Serve(options, *spawner);
}

}  // namespace
}  // namespace scalelab::worker

int main(int argc, char** argv) { return scalelab::worker::Main(argc, argv); }
