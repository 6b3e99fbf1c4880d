// The entry point of scalelab-worker, the daemon on each node of an allocation. Wiring only; start
// reading at agent.h.
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "files/lock_file.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/agent.h"
#include "worker/grpc_coordinator_client.h"
#include "worker/heartbeats.h"
#include "worker/node_info.h"
#include "worker/options.h"
#include "worker/process/signals.h"

namespace scalelab::worker {
namespace {

int Serve(const WorkerOptions& options, const SpawnerHandle& spawner, int signals) {
  EventLoop loop;
  int exit_code = 1;
  SpawnerProcesses processes(loop, spawner, [&] {
    spdlog::critical("The spawner process has died; exiting");
    loop.Stop();
  });
  auto coordinator = NewGrpcCoordinatorClient(options.coordinator);
  if (!coordinator.ok()) {
    spdlog::critical("cannot use --certificate: {}", std::string(coordinator.status().message()));
    return 2;
  }
  const auto client = std::make_unique<Heartbeats>(*std::move(coordinator));
  EventFollower follower(loop, SendThrough(*client, loop));
  const Frameworks frameworks = NewFrameworks(options);
  const LaunchHost launch = NewLaunchHost(options);
  Provenance provenance(loop, {options.own_program, options.rank_program, options.trainer_program},
                        launch.environment);
  PowerSampler power;
  const AttemptHost host{loop,
                         processes,
                         follower,
                         provenance,
                         frameworks,
                         launch,
                         options.node,
                         options.coordinator.allocation,
                         options.output_limit,
                         [pid = spawner.pid] { return OwnCpuSeconds(pid); },
                         &power};
  Agent agent(loop, *client, host, {options.node_index, options.give_up_after}, [&](Agent::Exit exit) {
    // kGaveUp is not a failure status, because srun would then end the workers of the other nodes, whose
    // attempts may still run.
    exit_code = exit == Agent::Exit::kDenied ? 1 : 0;
    loop.Stop();
  });
  loop.Watch(signals, [&] {
    if (TakeSignal(signals)) agent.Leave();
  });
  provenance.AskTrainer(processes, [&] { agent.Refresh(); });
  provenance.OnDiff([&] { agent.Refresh(); });
  agent.Start();
  loop.Run();
  provenance.Flush();
  return exit_code;
}

// Keeps the ranks, which have the same user, from reading the secret through ptrace or /proc/<pid>. This also holds
// for the spawner, but not for the programs that it starts.
void HideMemory() { prctl(PR_SET_DUMPABLE, 0); }

int Fail(const absl::Status& status) {
  fprintf(stderr, "scalelab-worker: %s\n", status.ToString().c_str());
  return 1;
}

// Takes the lock that is held while a process of this worker is alive; nothing if `path` is empty.
absl::StatusOr<std::optional<LockFile>> TakeLock(const std::string& path) {
  if (path.empty()) return std::nullopt;
  absl::StatusOr<std::optional<LockFile>> lock = LockFile::TakeWithProcessId(path);
  if (!lock.ok() || lock->has_value()) return lock;
  return absl::FailedPreconditionError(
      absl::StrCat("Lock file '", path,
                   "' is held: another worker runs, or its processes are still being ended; try again "
                   "when they are gone."));
}

int Main(int argc, char** argv) {
  WorkerOptions options;
  if (int code = 0; !ParseOptions(argc, argv, &options, &code)) return code;
  HideMemory();
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // see server/main.cc
  umask(umask(0) | S_IWOTH);  // other users must not be able to write to the attempts' folders
  CloseInheritedOnExec();
  const absl::StatusOr<std::optional<LockFile>> lock = TakeLock(options.lock_file);
  if (!lock.ok()) return Fail(lock.status());
  // Fork the spawner before any thread exists. It shares the lock.
  const absl::StatusOr<SpawnerHandle> spawner = ForkSpawner();
  if (!spawner.ok()) return Fail(spawner.status());
  spdlog::set_default_logger(spdlog::stderr_color_mt("worker"));
  // Signals are blocked before gRPC makes threads, which inherit the mask.
  return Serve(options, *spawner, BlockSignals());
}

}  // namespace
}  // namespace scalelab::worker

int main(int argc, char** argv) {
  const int code = scalelab::worker::Main(argc, argv);
  spdlog::shutdown();
  fflush(nullptr);
  // Use _exit, which runs no destructors of static objects: a thread of gRPC may still use them while it releases
  // its last call.
  _exit(code);
}
