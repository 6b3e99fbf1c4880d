#include "worker/process/spawner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "worker/process/process.h"
#include "worker/process/process_tree.h"
#include "worker/process/spawn.h"
#include "worker/process/spawner_wire.h"

namespace scalelab::worker {
namespace {

constexpr double kGraceAfterWorker = 1.0;  // seconds between TERM and KILL when the worker is gone

double Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct RunningJob {
  enum class Phase { kRunning, kStopping, kKilling };
  Phase phase = Phase::kRunning;
  std::string tag;
  double grace = 5;
  double kill_at = 0;                          // kStopping
  bool stopped = false;                        // by kStop
  std::set<std::pair<pid_t, uint64_t>> asked;  // processes that got SIGTERM: pid, start time
  std::map<pid_t, int> alive;                  // running commands: pid -> index
  std::set<pid_t> sessions;                    // sessions of all its commands
  int exit_status = 0;
  int failed = -1;
  std::string error;             // why a command could not be started; empty if all were started
  bool error_of_output = false;  // a file of its output could not be opened
};

class Spawner {
 public:
  explicit Spawner(int socket) : socket_(socket) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    child_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    timer_fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    // The worker handles signals that go to the whole process group or job (Ctrl-C, scancel).
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGUSR1}) ::signal(signal, SIG_IGN);
  }

  void Serve() {
    while (connected_) {
      pollfd fds[] = {{socket_, POLLIN, 0}, {child_fd_, POLLIN, 0}, {timer_fd_, POLLIN, 0}};
      if (poll(fds, 3, -1) < 0) continue;
      if (fds[1].revents != 0) OnChildren();
      if (fds[2].revents != 0) OnTimer();
      if (fds[0].revents != 0) OnSocket();
    }
  }

  void EndEverything() {
    for (const ProcessInfo& process : DescendantsOf(getpid())) Signal(process, SIGTERM);
    const double until = Now() + kGraceAfterWorker;
    for (;;) {
      while (waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      if (waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return;
      const double left = until - Now();
      if (left <= 0) break;
      pollfd fd{child_fd_, POLLIN, 0};
      poll(&fd, 1, static_cast<int>(left * 1000) + 1);
      signalfd_siginfo info;
      while (read(child_fd_, &info, sizeof info) > 0) {
      }
    }
    KillAllDescendants();
  }

 private:
  void OnSocket() {
    char buffer[65536];
    const ssize_t got = recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      connected_ = false;
      return;
    }
    input_.append(buffer, got);
    std::string frame;
    while (TakeFrame(&input_, &frame)) {
      FrameReader reader(frame);
      const Wire type = reader.Get<Wire>();
      const uint64_t id = reader.Get<uint64_t>();
      if (type == Wire::kStart) StartJob(id, reader);
      if (type == Wire::kStop) StopJob(id, reader.Get<double>());
      if (type == Wire::kNotify) NotifyJob(id);
    }
  }

  void StartJob(uint64_t id, FrameReader& reader) {
    RunningJob job;
    job.tag = reader.GetString();
    job.grace = reader.Get<double>();
    const uint32_t count = reader.Get<uint32_t>();
    pid_t first = 0;
    for (uint32_t i = 0; i < count; ++i) {
      Command command;
      command.argv = reader.GetStrings();
      command.environment = reader.GetStrings();
      command.directory = reader.GetString();
      command.output = reader.GetString();
      command.error = reader.GetString();
      command.cpus = reader.GetNumbers();
      const pid_t pid = Spawn(command, &job.error, &job.error_of_output);
      if (pid < 0) break;
      if (first == 0) first = pid;
      job.alive[pid] = static_cast<int>(i);
      job.sessions.insert(pid);
    }
    const bool started = job.error.empty();
    // A job starts all of its commands or none. Kill the commands started so far, and the processes that they
    // have started in the meantime.
    if (!started) job.phase = RunningJob::Phase::kKilling;
    jobs_[id] = std::move(job);
    if (!started) return Advance();
    Send(FrameWriter(Wire::kStarted).Put(id).Put(static_cast<int32_t>(first)).Finish());
  }

  void NotifyJob(uint64_t id) {
    const auto it = jobs_.find(id);
    if (it == jobs_.end()) return;
    for (const ProcessInfo& process : MembersOf(it->second)) Signal(process, SIGUSR1);
  }

  void StopJob(uint64_t id, double grace) {
    auto it = jobs_.find(id);
    if (it == jobs_.end()) return;
    it->second.stopped = true;
    BeginStop(it->second, grace);
  }

  void BeginStop(RunningJob& job, double grace) {
    const double kill_at = Now() + grace;
    if (job.phase == RunningJob::Phase::kRunning) {
      job.phase = RunningJob::Phase::kStopping;
      job.kill_at = kill_at;
      AskToEnd(job);
    } else if (job.phase == RunningJob::Phase::kStopping) {
      job.kill_at = std::min(job.kill_at, kill_at);
    }
    ArmTimer();
  }

  // Sends SIGTERM, once to each process.
  void AskToEnd(RunningJob& job) {
    for (const ProcessInfo& process : MembersOf(job)) {
      if (job.asked.emplace(process.pid, process.start_time).second) Signal(process, SIGTERM);
    }
  }

  void OnChildren() {
    signalfd_siginfo info;
    while (read(child_fd_, &info, sizeof info) > 0) {
    }
    Reap();
    Advance();
  }

  // Removes zombies. Returns whether a command has ended.
  bool Reap() {
    bool ended = false;
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      for (auto& [id, job] : jobs_) {
        auto command = job.alive.find(pid);
        if (command == job.alive.end()) continue;
        const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        if (code != 0 && job.failed < 0) {
          job.failed = command->second;
          job.exit_status = code;
        }
        job.alive.erase(command);
        ended = true;
        break;
      }
    }
    return ended;
  }

  void OnTimer() {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = read(timer_fd_, &count, sizeof count);
    const double now = Now();
    for (auto& [id, job] : jobs_) {
      if (job.phase == RunningJob::Phase::kStopping && job.kill_at <= now) {
        job.phase = RunningJob::Phase::kKilling;
      }
    }
    Advance();
    ArmTimer();
  }

  // Advances every job as far as possible. The event that a job waits for always causes a SIGCHLD here,
  // because the last process of a tree to die is a child of the spawner.
  void Advance() {
    bool orphans = !jobs_.empty() && MayHaveOrphans();
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      RunningJob& job = it->second;
      if (job.alive.empty() && (!orphans || MembersOf(job).empty())) {
        // The last processes of a job may be zombies; remove them before the end of the job is reported. If
        // this also removes a command of another job, the processes that the command started are orphans now.
        if (Reap()) orphans = MayHaveOrphans();
        SendEnd(it->first, job);
        it = jobs_.erase(it);
        continue;
      }
      if (job.phase == RunningJob::Phase::kKilling) {
        for (const ProcessInfo& process : MembersOf(job)) Signal(process, SIGKILL);
      } else if (job.phase == RunningJob::Phase::kStopping) {
        AskToEnd(job);  // processes started since the last call
      } else if (job.alive.empty() || job.failed >= 0) {
        BeginStop(job, job.grace);
      }
      ++it;
    }
  }

  void SendEnd(uint64_t id, const RunningJob& job) {
    if (!job.error.empty()) {
      return Send(FrameWriter(Wire::kFailed)
                      .Put(id)
                      .Put(job.error)
                      .Put(static_cast<uint8_t>(job.error_of_output))
                      .Finish());
    }
    Send(FrameWriter(Wire::kEnded)
             .Put(id)
             .Put(static_cast<int32_t>(job.exit_status))
             .Put(static_cast<int32_t>(job.failed))
             .Put(static_cast<uint8_t>(job.stopped))
             .Finish());
  }

  // Returns whether the spawner has a child that is not a job's command. It usually has none, which one
  // short read shows.
  bool MayHaveOrphans() {
    std::vector<pid_t> children;
    if (!ReadOwnChildren(&children)) return true;
    return std::any_of(children.begin(), children.end(),
                       [this](pid_t pid) { return CommandOwner(pid) == nullptr; });
  }

  const RunningJob* CommandOwner(pid_t pid) const {
    for (const auto& [id, job] : jobs_) {
      if (job.alive.contains(pid)) return &job;
    }
    return nullptr;
  }

  // Returns the job of a child of the spawner: by command, tag or session. A child that hides all three
  // belongs to the only job, if just one is left.
  const RunningJob* OwnerOf(const ProcessInfo& child) const {
    if (const RunningJob* job = CommandOwner(child.pid)) return job;
    for (const auto& [id, job] : jobs_) {
      if (job.sessions.contains(child.session) || HasEnvironment(child.pid, job.tag)) return &job;
    }
    return jobs_.size() == 1 ? &jobs_.begin()->second : nullptr;
  }

  std::vector<ProcessInfo> MembersOf(const RunningJob& job) const {
    const pid_t self = getpid();
    std::set<pid_t> member_pids;
    std::vector<ProcessInfo> members;
    // Parents come before their children.
    for (const ProcessInfo& process : DescendantsOf(self)) {
      const bool member =
          process.parent == self ? OwnerOf(process) == &job : member_pids.contains(process.parent);
      if (!member) continue;
      member_pids.insert(process.pid);
      members.push_back(process);
    }
    return members;
  }

  void ArmTimer() {
    double next = 0;
    for (const auto& [id, job] : jobs_) {
      if (job.phase != RunningJob::Phase::kStopping) continue;
      next = next == 0 ? job.kill_at : std::min(next, job.kill_at);
    }
    itimerspec when{};
    if (next > 0) {
      const double left = std::max(next - Now(), 1e-6);
      when.it_value.tv_sec = static_cast<time_t>(left);
      when.it_value.tv_nsec = static_cast<long>((left - static_cast<double>(when.it_value.tv_sec)) * 1e9) + 1;
      when.it_value.tv_nsec = std::min(when.it_value.tv_nsec, 999'999'999L);
    }
    timerfd_settime(timer_fd_, 0, &when, nullptr);
  }

  void Send(const std::string& frame) {
    for (size_t at = 0; at < frame.size();) {
      const ssize_t sent = send(socket_, frame.data() + at, frame.size() - at, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) {
        connected_ = false;
        return;
      }
      at += sent;
    }
  }

  const int socket_;
  int child_fd_;
  int timer_fd_;
  bool connected_ = true;
  std::string input_;
  std::map<uint64_t, RunningJob> jobs_;
};

}  // namespace

void RunSpawner(int socket) {
  prctl(PR_SET_NAME, "scalelab-spawn");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  Spawner spawner(socket);
  spawner.Serve();
  spawner.EndEverything();
  _exit(0);
}

}  // namespace scalelab::worker
