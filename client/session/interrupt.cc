#include "client/session/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "client/session/exit_code.h"

namespace scalelab::client {
namespace {

std::atomic<const char*> interrupt_words = nullptr;
std::atomic<pid_t> passed_to = 0;

static_assert(static_cast<int>(ExitCode::kInterrupted) == 128 + SIGINT);
static_assert(static_cast<int>(ExitCode::kTerminated) == 128 + SIGTERM);

// A signal handler: calls only functions that signal-safety(7) allows.
void OnInterrupt(int signal, siginfo_t* info, void*) {
  if (const pid_t child = passed_to.load(); child != 0) {
    const int error = errno;
    // A terminal sends Ctrl-C to the child, too.
    if (info->si_code != SI_KERNEL) kill(child, signal);
    errno = error;
    return;
  }
  const char* words = interrupt_words.load();
  if (words != nullptr) {
    for (const char* text : {"\n", words, "\n"}) {
      if (write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
    }
  }
  _exit(128 + signal);
}

}  // namespace

void InstallInterruptHandler() {
  struct sigaction action = {};
  action.sa_sigaction = OnInterrupt;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void SetInterruptWords(const char* words) { interrupt_words = words; }

void PassInterruptsTo(pid_t child) { passed_to = child; }

}  // namespace scalelab::client
