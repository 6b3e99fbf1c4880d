// Runs a rank in a process that is forked from trainer_template.cc, for launchers such as mpirun: forked_rank ARGUMENTS...
// SCALELAB_TRAINER_TEMPLATE names the socket of the template.
//
// The rank gets the environment, the working directory and the standard streams of this process, and the
// signals that stop a run. This process exits with the status of the rank. If this process is killed, the
// rank is killed too. It uses only libc, because it is started for each rank.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "tests/unit/trainer/rank_request.h"

namespace scalelab::trainer {
namespace {

[[noreturn]] void Fail(const char* what) {
  perror(what);
  _exit(125);
}

int Connect(const char* name) {
  sockaddr_un address;
  const socklen_t size = TemplateAddress(name, address);
  if (size == 0) {
    fputs("SCALELAB_TRAINER_TEMPLATE must name the socket of a trainer_template\n", stderr);
    _exit(125);
  }
  const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), size) != 0) Fail(name);
  return connection;
}

void Send(int connection, const std::string& request) {
  const int descriptors[kDescriptors] = {0, 1, 2, open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  uint64_t size = request.size();
  iovec bytes{&size, sizeof size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptors)] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptors);
  memcpy(CMSG_DATA(header), descriptors, sizeof descriptors);
  if (sendmsg(connection, &message, MSG_NOSIGNAL) != sizeof size) Fail("sendmsg");
  for (size_t sent = 0; sent < request.size();) {
    const ssize_t part = send(connection, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (part <= 0) Fail("send");
    sent += part;
  }
}

// Passes signals to the rank until it ends. Returns its wait status.
int AwaitEnd(int connection, int signals) {
  for (;;) {
    pollfd ready[] = {{connection, POLLIN, 0}, {signals, POLLIN, 0}};
    if (poll(ready, 2, -1) < 0) Fail("poll");
    if (ready[1].revents != 0) {
      signalfd_siginfo received;
      if (read(signals, &received, sizeof received) != sizeof received) Fail("signalfd");
      const auto number = static_cast<uint8_t>(received.ssi_signo);
      if (send(connection, &number, 1, MSG_NOSIGNAL) != 1) Fail("send");
    }
    if (ready[0].revents != 0) {
      int status = 0;
      if (read(connection, &status, sizeof status) != sizeof status) {
        fputs("the trainer_template could not start the rank, or has ended\n", stderr);
        _exit(125);
      }
      return status;
    }
  }
}

int Main(char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t passed;
  sigemptyset(&passed);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) sigaddset(&passed, number);
  sigprocmask(SIG_BLOCK, &passed, nullptr);
  const int signals = signalfd(-1, &passed, SFD_CLOEXEC);
  const int connection = Connect(getenv("SCALELAB_TRAINER_TEMPLATE"));
  std::string request;
  for (char** argument = argv; *argument != nullptr; ++argument) request.append(*argument).push_back('\0');
  request.push_back('\0');
  for (char** variable = environ; *variable != nullptr; ++variable) request.append(*variable).push_back('\0');
  Send(connection, request);
  const int status = AwaitEnd(connection, signals);
  if (WIFSIGNALED(status)) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    sigprocmask(SIG_UNBLOCK, &passed, nullptr);
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
  }
  return WEXITSTATUS(status);
}

}  // namespace
}  // namespace scalelab::trainer

int main(int, char** argv) { return scalelab::trainer::Main(argv); }
