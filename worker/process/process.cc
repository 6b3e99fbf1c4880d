#include "worker/process/process.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/process/process_tree.h"
#include "worker/process/spawner.h"
#include "worker/process/spawner_wire.h"

namespace scalelab::worker {

namespace {

constexpr absl::Duration kCheckPeriod = absl::Seconds(1);
constexpr int kMaxStops = 5;  // in successive checks

}  // namespace

void CloseInheritedOnExec() {
  constexpr unsigned kCloseOnExec = 1u << 2;  // CLOSE_RANGE_CLOEXEC
  syscall(SYS_close_range, 3u, ~0u, kCloseOnExec);
}

absl::StatusOr<SpawnerHandle> ForkSpawner() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "Cannot create the socket to the spawner process");
  }
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "Cannot fork the spawner process");
  if (pid == 0) {
    close(ends[0]);
    RunSpawner(ends[1]);  // does not return
  }
  close(ends[1]);
  return SpawnerHandle{ends[0], pid};
}

SpawnerProcesses::SpawnerProcesses(EventLoop& loop, SpawnerHandle spawner, std::function<void()> lost)
    : loop_(loop), spawner_(spawner), lost_(std::move(lost)) {
  loop_.Watch(spawner_.socket, [this] { Receive(); });
}

SpawnerProcesses::~SpawnerProcesses() {
  loop_.Cancel(check_timer_);
  loop_.Unwatch(spawner_.socket);
  close(spawner_.socket);
  int status = 0, stops = 0;
  while (waitpid(spawner_.pid, &status, WUNTRACED) < 0 ? errno == EINTR : WIFSTOPPED(status)) {
    if (WIFSTOPPED(status)) kill(spawner_.pid, ++stops < kMaxStops ? SIGCONT : SIGKILL);
  }
  KillAllDescendants();  // there are remaining processes only if the spawner died
}

uint64_t SpawnerProcesses::Start(const Job& job, Started started, Ended ended) {
  const uint64_t id = next_id_++;
  FrameWriter frame(Wire::kStart);
  frame.Put(id).Put(job.tag).Put(absl::ToDoubleSeconds(job.grace));
  frame.Put(static_cast<uint32_t>(job.commands.size()));
  for (const Command& command : job.commands) {
    frame.Put(command.argv).Put(command.environment).Put(command.directory).Put(command.output);
    frame.Put(command.error).Put(command.cpus);
  }
  jobs_[id] = {std::move(started), std::move(ended)};
  if (check_timer_ == 0) check_timer_ = loop_.After(kCheckPeriod, [this] { Check(); });
  Send(frame.Finish());
  return id;
}

void SpawnerProcesses::Notify(uint64_t id) {
  if (jobs_.contains(id)) Send(FrameWriter(Wire::kNotify).Put(id).Finish());
}

void SpawnerProcesses::Stop(uint64_t id, absl::Duration grace) {
  if (!jobs_.contains(id)) return;
  Send(FrameWriter(Wire::kStop).Put(id).Put(absl::ToDoubleSeconds(grace)).Finish());
}

// Continues the spawner if a rank has stopped it by SIGSTOP. A spawner that is stopped repeatedly cannot end
// its jobs, so it is killed; Receive then detects that it is lost.
void SpawnerProcesses::Check() {
  check_timer_ = jobs_.empty() ? 0 : loop_.After(kCheckPeriod, [this] { Check(); });
  siginfo_t info{};
  const bool stopped = waitid(P_PID, spawner_.pid, &info, WSTOPPED | WNOHANG) == 0 && info.si_pid != 0;
  stops_ = stopped ? stops_ + 1 : 0;
  if (stopped) kill(spawner_.pid, stops_ < kMaxStops ? SIGCONT : SIGKILL);
}

void SpawnerProcesses::Send(const std::string& frame) {
  for (size_t at = 0; at < frame.size();) {
    const ssize_t sent = send(spawner_.socket, frame.data() + at, frame.size() - at, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return;  // the spawner has ended, which Receive detects too
    at += sent;
  }
}

void SpawnerProcesses::Receive() {
  char buffer[16384];
  const ssize_t got = recv(spawner_.socket, buffer, sizeof buffer, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    loop_.Unwatch(spawner_.socket);
    lost_();
    return;
  }
  input_.append(buffer, got);
  std::string frame;
  while (TakeFrame(&input_, &frame)) Dispatch(frame);
}

void SpawnerProcesses::Dispatch(const std::string& frame) {
  FrameReader reader(frame);
  const Wire type = reader.Get<Wire>();
  const uint64_t id = reader.Get<uint64_t>();
  auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  if (type == Wire::kStarted) {
    it->second.started(reader.Get<int32_t>());
    return;
  }
  const Pending job = std::move(it->second);
  jobs_.erase(it);
  if (type == Wire::kFailed) {
    const std::string message = reader.GetString();
    const bool of_output = reader.Get<uint8_t>() != 0;
    job.started(of_output ? absl::UnavailableError(message) : absl::NotFoundError(message));
  } else {
    JobResult result;
    result.exit_status = reader.Get<int32_t>();
    result.failed = reader.Get<int32_t>();
    result.stopped = reader.Get<uint8_t>() != 0;
    job.ended(result);
  }
}

}  // namespace scalelab::worker
