#include "worker/trainer/loop/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace scalelab::trainer {
namespace {

constexpr std::array<int, 2> kSignals = {SIGTERM, SIGUSR1};
volatile sig_atomic_t received = 0;
std::array<struct sigaction, kSignals.size()> earlier;

void Record(int number) { received = number; }

}  // namespace

StopSignal::StopSignal() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = Record;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &earlier[i]);
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &earlier[i], nullptr);
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
