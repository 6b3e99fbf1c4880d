// Real processes for end-to-end tests.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace scalelab::e2e {

struct Output {
  int code = -1;  // exit status, or 128 + signal
  std::string out;
  std::string err;
};

// Runs a program to its end and captures its output. After `seconds` the program is killed, and the
// code is 124.
Output RunProgram(const std::vector<std::string>& argv, const std::map<std::string, std::string>& env = {},
                  double seconds = 120);

// Returns the command line that runs `argv` under an account of this machine; needs root.
std::vector<std::string> As(const std::string& account, const std::vector<std::string>& argv);

// A background program. Its stdout can be read line by line with a timeout; its stderr goes to `log`.
class Background {
 public:
  Background(const std::vector<std::string>& argv, const std::string& log,
             const std::map<std::string, std::string>& env = {});
  ~Background();  // kills the program
  Background(const Background&) = delete;

  // Returns the next line of stdout without its line break. Empty at the end of the output or on timeout.
  std::string Line(double seconds = 30);
  void Signal(int signal);
  // Waits for the program. Returns its exit status, or 128 + signal; -1 on timeout.
  int Wait(double seconds = 30);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string buffer_;
  int code_ = -1;
  bool ended_ = false;
};

// Returns the processes whose command line contains `text`, except this one.
std::vector<pid_t> ProcessesWith(const std::string& text);
// Returns the processes whose environment contains `text`.
std::vector<pid_t> ProcessesInEnvironment(const std::string& text);
std::string CommandLine(pid_t pid);
// Returns the resident memory of a process in bytes; 0 if there is none.
int64_t ResidentBytes(pid_t pid);

std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& text);

// Evaluates `condition` every 20 ms until it is true. Returns false on timeout. For conditions on other
// processes, which no event in this process announces.
template <typename Condition>
bool Eventually(Condition condition, double seconds = 30);

double Now();
void Pause(double seconds);

template <typename Condition>
bool Eventually(Condition condition, double seconds) {
  const double end = Now() + seconds;
  while (true) {
    const double begin = Now();
    if (condition()) return true;
    const double now = Now();
    if (now > end) return false;
    // Many conditions start programs. Longer pauses leave two thirds of a core to the programs under test.
    Pause(std::clamp(2 * (now - begin), 0.02, 0.25));
  }
}

}  // namespace scalelab::e2e
