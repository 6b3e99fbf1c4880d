// Forks ranks from a process that has loaded LibTorch: trainer_template SOCKET. Loading LibTorch takes longer
// than most runs of the tests. The tests therefore start forked_rank.cc instead of the trainer. This program
// writes "ready" to standard output, and ends when its parent ends.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/trainer/rank_request.h"
#include "worker/trainer/loop/trainer_main.h"

namespace scalelab::trainer {
namespace {

struct Request {
  int descriptors[kDescriptors];
  std::string strings;  // arguments, an empty string, environment
};

bool Receive(int connection, Request& request) {
  uint64_t size = 0;
  iovec bytes{&size, sizeof size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof request.descriptors)];
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != sizeof size) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_len != CMSG_LEN(sizeof request.descriptors)) return false;
  std::memcpy(request.descriptors, CMSG_DATA(header), sizeof request.descriptors);
  request.strings.resize(size);
  return recv(connection, request.strings.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

[[noreturn]] void RunRank(Request& request) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "scalelab-trainer");
  for (int stream = 0; stream < 3; ++stream) dup2(request.descriptors[stream], stream);
  if (fchdir(request.descriptors[3]) != 0) std::perror("fchdir");
  std::vector<char*> arguments;
  char* next = request.strings.data();
  for (; *next != '\0'; next += std::strlen(next) + 1) arguments.push_back(next);
  arguments.push_back(nullptr);
  clearenv();
  char* const end = request.strings.data() + request.strings.size();
  for (++next; next < end; next += std::strlen(next) + 1) putenv(next);
  std::exit(TrainerMain(static_cast<int>(arguments.size()) - 1, arguments.data()));
}

// Serves one rank: passes signals to it, kills it if the other side has ended, and sends its wait status.
[[noreturn]] void Serve(int connection) {
  Request request;
  if (!Receive(connection, request)) std::_Exit(1);
  const pid_t rank = fork();
  if (rank == 0) {
    close(connection);
    RunRank(request);
  }
  if (rank < 0) std::_Exit(1);
  const int end = static_cast<int>(syscall(SYS_pidfd_open, rank, 0));
  if (end < 0) {
    kill(rank, SIGKILL);
    std::_Exit(1);
  }
  for (bool connected = true;;) {
    pollfd ready[] = {{end, POLLIN, 0}, {connected ? connection : -1, POLLIN, 0}};
    poll(ready, 2, -1);
    if (ready[0].revents != 0) break;
    uint8_t number = SIGKILL;
    if (ready[1].revents != 0) {
      connected = read(connection, &number, 1) == 1;
      kill(rank, number);
    }
  }
  int status = 0;
  waitpid(rank, &status, 0);
  send(connection, &status, sizeof status, MSG_NOSIGNAL);
  std::_Exit(0);
}

int Main(int argc, char** argv) {
  sockaddr_un address;
  const socklen_t size = argc == 2 ? TemplateAddress(argv[1], address) : 0;
  if (size == 0) {
    std::fprintf(stderr, "usage: trainer_template SOCKET\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 64) != 0) {
    std::perror(argv[1]);
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  signal(SIGCHLD, SIG_IGN);  // so that ended child processes do not become zombies
  for (;;) {
    const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      std::perror("accept");
      return 1;
    }
    if (fork() == 0) {
      signal(SIGCHLD, SIG_DFL);
      close(listener);
      Serve(connection);
    }
    close(connection);
  }
}

}  // namespace
}  // namespace scalelab::trainer

int main(int argc, char** argv) { return scalelab::trainer::Main(argc, argv); }
