#include "worker/trainer/loop/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace scalelab::trainer {
namespace {

constexpr std::array<int, 2> kSignals = {SIGTERM, SIGUSR1};
volatile sig_atomic_t received = 0;

void Record(int number) { received = number; }

}  // namespace

StopSignal::StopSignal() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = Record;
  action.sa_flags = SA_RESTART;
  for (const int number : kSignals) sigaction(number, &action, nullptr);
}

StopSignal::~StopSignal() {
  for (const int number : kSignals) signal(number, SIG_IGN);
}

int StopSignal::number() { return received; }

void StopSignal::EndProcess(int number) {
  signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(number);
  _exit(128 + number);
}

}  // namespace scalelab::trainer
