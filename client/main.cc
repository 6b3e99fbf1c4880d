// The main of `scalelab`, the command-line client. program.h holds the logic.
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/output/terminal.h"
#include "client/program.h"
#include "client/session/interrupt.h"

int main(int argc, char** argv) {
  using namespace scalelab::client;
  std::ios::sync_with_stdio(false);
  InstallInterruptHandler();
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // see server/main.cc
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails as on a full disk
  Io io{std::cout, std::cerr, DetectTerminal(STDOUT_FILENO, false), DetectTerminal(STDERR_FILENO, false)};
  io.in_tty = isatty(STDIN_FILENO) == 1;
  return RunProgram(std::vector<std::string>(argv + 1, argv + argc), io);
}
