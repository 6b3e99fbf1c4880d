// Starts and ends processes for the worker through the spawner (spawner.h), a small child process.
//
//   worker (gRPC, threads) <-- socketpair --> spawner (one thread, subreaper) --> commands --> descendants
//
// Reasons for a separate process: gRPC does not survive fork; a single-threaded process starts others cheaply
// and safely; and if the worker is killed with SIGKILL, the spawner is left to end the worker's processes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/process/event_loop.h"

namespace scalelab::worker {

// A process to start, in a new session.
struct Command {
  std::vector<std::string> argv;         // argv[0] is searched in PATH of `environment` if it has no '/'
  std::vector<std::string> environment;  // all of it, "NAME=value"
  std::string directory;                 // working directory
  std::string output, error;             // files that standard output and standard error are appended to
  std::vector<int> cpus = {};            // cores to pin it to; empty: all cores the worker may use
};

// A group of processes. When one fails, the others are stopped. The job ends when its processes and all their
// descendants are gone.
struct Job {
  std::string tag;  // "NAME=value", in the environment of every process: identifies orphans
  std::vector<Command> commands;
  absl::Duration grace =
      absl::Seconds(5);  // between SIGTERM and SIGKILL for remaining processes when the job ends without Stop
};

struct JobResult {
  // Status of the first command that failed: 1 to 255, or 128 + signal; 0 if none failed.
  int exit_status = 0;
  int failed = -1;       // index of that command; -1 if none failed
  bool stopped = false;  // Stop was called before the job ended
};

// Starts jobs and reports their ends. Call all methods on the event loop's thread.
class Processes {
 public:
  // Callbacks run on the loop's thread, after Start has returned. `started` is called once, with the id of
  // the first process or with the reason why a command could not be started; in that case no command keeps running. The
  // reason is UNAVAILABLE if a file of its output could not be opened, otherwise NOT_FOUND. If the job started, `ended` is
  // called once.
  using Started = std::function<void(absl::StatusOr<int>)>;
  using Ended = std::function<void(JobResult)>;

  virtual ~Processes() = default;
  // Starts all commands of the job, or none. Returns the job's id, which is never 0.
  virtual uint64_t Start(const Job& job, Started started, Ended ended) = 0;
  // Sends SIGUSR1 to every process of the job, to announce that its time ends soon. Ignores a job
  // that has ended.
  virtual void Notify(uint64_t id) = 0;
  // Sends SIGTERM to every process of the job, and SIGKILL to the remaining ones after `grace`. A second call
  // may shorten the grace. Ignores a job that has ended.
  virtual void Stop(uint64_t id, absl::Duration grace) = 0;
};

// The worker's connection to the spawner.
struct SpawnerHandle {
  int socket = -1;
  int pid = -1;
};

// Sets close-on-exec on every descriptor except 0, 1 and 2, so that ranks inherit none that this process
// was started with.
void CloseInheritedOnExec();

// Forks the spawner. Call it before any thread exists, with every descriptor except 0, 1 and 2 closed on
// exec. Also makes the calling process a subreaper, so that it adopts all processes if the spawner dies.
// Errors are those of the system calls.
absl::StatusOr<SpawnerHandle> ForkSpawner();

// The worker's side of the connection. Calls `lost` once if the spawner dies; the worker cannot continue
// without it. Continues a spawner that a rank has stopped by SIGSTOP; a spawner that is stopped repeatedly
// counts as dead.
class SpawnerProcesses final : public Processes {
 public:
  SpawnerProcesses(EventLoop& loop, SpawnerHandle spawner, std::function<void()> lost);
  // Closes the socket, which makes the spawner end all its processes, and waits until the spawner has exited.
  ~SpawnerProcesses() override;

  uint64_t Start(const Job& job, Started started, Ended ended) override;
  void Notify(uint64_t id) override;
  void Stop(uint64_t id, absl::Duration grace) override;

 private:
  struct Pending {
    Started started;
    Ended ended;
  };
  void Receive();
  void Dispatch(const std::string& frame);
  void Send(const std::string& frame);
  void Check();

  EventLoop& loop_;
  SpawnerHandle spawner_;
  std::function<void()> lost_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Pending> jobs_;
  std::string input_;
  EventLoop::TimerId check_timer_ = 0;  // runs while there are jobs
  int stops_ = 0;                       // successive checks that found the spawner stopped
};

}  // namespace scalelab::worker
