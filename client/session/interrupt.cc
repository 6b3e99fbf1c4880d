#include "client/session/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "client/session/exit_code.h"

namespace scalelab::client {
namespace {

std::atomic<const char*> interrupt_words = nullptr;

// A signal handler: calls only functions that signal-safety(7) allows.
void OnInterrupt(int) {
  const char* words = interrupt_words.load();
  if (words != nullptr) {
    const auto write_all = [](const char* text) { return write(STDERR_FILENO, text, std::strlen(text)); };
    if (write_all("\n") < 0 || write_all(words) < 0 || write_all("\n") < 0) _exit(1);
  }
  _exit(static_cast<int>(ExitCode::kInterrupted));
}

}  // namespace

void InstallInterruptHandler() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void SetInterruptWords(const char* words) { interrupt_words = words; }

}  // namespace scalelab::client
