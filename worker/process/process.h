// Starts and ends processes for the worker through the spawner (spawner.h), a small child of the worker.
//
//   worker (gRPC, threads) <-- socketpair --> spawner (one thread, subreaper) --> commands --> whatever they
//   start
//
// Why a process of its own: gRPC does not survive fork, a process of one thread can start others cheaply and
// safely, and when the worker is killed with -9 somebody is left who ends its processes.
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

// One process to start, in a session of its own.
struct Command {
  std::vector<std::string> argv;         // argv[0] is looked up in PATH of `environment` when it has no '/'
  std::vector<std::string> environment;  // all of it, "NAME=value"
  std::string directory;                 // working directory
  std::string output, error;             // files that standard output and error are appended to
  std::vector<int> cpus = {};            // it runs on these only; none: on all that the worker may use
};

// Processes that belong together: when one fails the others are stopped, and the job has ended only when they
// and everything they started are gone.
struct Job {
  std::string tag;  // "NAME=value" that all have in their environment: tells whose an orphan is
  std::vector<Command> commands;
  absl::Duration grace =
      absl::Seconds(5);  // between TERM and KILL for what is left when the job ends by itself
};

struct JobResult {
  int exit_status = 0;   // 0 to 255, or 128 + signal: of the first command that failed, else 0
  int failed = -1;       // which command that was; -1: none
  bool stopped = false;  // Stop came before the end
};

class Processes {
 public:
  // All are called on the loop's thread, after Start has returned: `started` once, with the first process id
  // or why a command could not be started; then, only if it could, `ended` once.
  using Started = std::function<void(absl::StatusOr<int>)>;
  using Ended = std::function<void(JobResult)>;

  virtual ~Processes() = default;
  // Returns the job's id.
  virtual uint64_t Start(const Job& job, Started started, Ended ended) = 0;
  // TERM to every process of the job, KILL to what is left after `grace`. Of a job that is gone nothing
  // happens; a second call may shorten the grace.
  virtual void Stop(uint64_t id, absl::Duration grace) = 0;
};

// What ForkSpawner leaves to the worker.
struct SpawnerHandle {
  int socket = -1;
  int pid = -1;
};

// Marks every descriptor but 0, 1, 2 to be closed on exec: nothing that came with this process goes to ranks.
void CloseInheritedOnExec();

// Forks the spawner. Call it before any thread exists, with every descriptor but 0, 1, 2 closed on exec.
// Makes the caller a subreaper, so that nothing gets lost even if the spawner dies.
absl::StatusOr<SpawnerHandle> ForkSpawner();

// The worker's end. `lost` is called once if the spawner dies: the worker cannot go on without it.
class SpawnerProcesses final : public Processes {
 public:
  SpawnerProcesses(EventLoop& loop, SpawnerHandle spawner, std::function<void()> lost);
  // Closes the socket, upon which the spawner ends everything, and waits for that.
  ~SpawnerProcesses() override;

  uint64_t Start(const Job& job, Started started, Ended ended) override;
  void Stop(uint64_t id, absl::Duration grace) override;

 private:
  struct Pending {
    Started started;
    Ended ended;
  };
  void Receive();
  void Dispatch(const std::string& frame);
  void Send(const std::string& frame);

  EventLoop& loop_;
  SpawnerHandle spawner_;
  std::function<void()> lost_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Pending> jobs_;
  std::string input_;
};

}  // namespace scalelab::worker
