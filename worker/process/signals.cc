#include "worker/process/signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace scalelab::worker {

int BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGUSR1);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a write beyond RLIMIT_FSIZE fails with EFBIG instead
  return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

bool TakeSignal(int signals) {
  signalfd_siginfo info;
  bool came = false;
  while (read(signals, &info, sizeof info) > 0) came = true;
  return came;
}

}  // namespace scalelab::worker
