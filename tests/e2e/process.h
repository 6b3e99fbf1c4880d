// Real processes for end-to-end tests.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace scalelab::e2e {

struct Output {
  int code = -1;  // exit status, or 128 + signal
  std::string out;
  std::string err;
};

// Runs a program to its end; what it prints is kept. `seconds`: after it the program is killed and code is
// 124.
Output RunProgram(const std::vector<std::string>& argv, const std::map<std::string, std::string>& env = {},
                  double seconds = 120);

// A program that goes on. Its stdout can be waited on line by line; stderr goes to `log`.
class Background {
 public:
  Background(const std::vector<std::string>& argv, const std::string& log,
             const std::map<std::string, std::string>& env = {});
  ~Background();  // kills it
  Background(const Background&) = delete;

  // The next line of stdout, without its end; empty when it ended or nothing came in time.
  std::string Line(double seconds = 30);
  void Signal(int signal);
  // Exit status, or 128 + signal; -1 when it has not ended in time.
  int Wait(double seconds = 30);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string buffer_;
  int code_ = -1;
  bool ended_ = false;
};

// Processes whose command line contains `text`, this one left out.
std::vector<pid_t> ProcessesWith(const std::string& text);
// Processes whose environment has `text`.
std::vector<pid_t> ProcessesInEnvironment(const std::string& text);
std::string CommandLine(pid_t pid);

std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& text);

// Asks every 20 ms until `condition` holds; false when it does not in time. For conditions that only other
// processes can see, which no event of ours announces.
template <typename Condition>
bool Eventually(Condition condition, double seconds = 30);

double Now();
void Pause(double seconds);

template <typename Condition>
bool Eventually(Condition condition, double seconds) {
  const double end = Now() + seconds;
  while (true) {
    if (condition()) return true;
    if (Now() > end) return false;
    Pause(0.02);
  }
}

}  // namespace scalelab::e2e
