// A munged for tests, with its own key and socket.
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "munge/munge.h"

namespace scalelab::fakes {

class Munged {
 public:
  static bool IsInstalled() { return access(kProgram, X_OK) == 0 && Munge::IsInstalled(); }

  // Returns when munged accepts connections, or after ten seconds.
  Munged() {
    std::string pattern = "/tmp/scalelab-munge-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    chmod(directory_.c_str(), 0711);
    std::ofstream(directory_ + "/key") << std::string(64, 'k');
    chmod((directory_ + "/key").c_str(), 0400);
    pid_ = fork();
    if (pid_ == 0) Execute();
    for (int i = 0; i < 500 && access(socket().c_str(), F_OK) != 0; ++i)
      absl::SleepFor(absl::Milliseconds(20));
  }
  ~Munged() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
    std::filesystem::remove_all(directory_);
  }
  Munged(const Munged&) = delete;

  std::string socket() const { return directory_ + "/socket"; }

 private:
  static constexpr char kProgram[] = "/usr/sbin/munged";

  [[noreturn]] void Execute() const {
    std::vector<std::string> words = {kProgram,
                                      "--foreground",
                                      "--force",
                                      "--key-file=" + directory_ + "/key",
                                      "--socket=" + socket(),
                                      "--pid-file=" + directory_ + "/pid",
                                      "--log-file=" + directory_ + "/log",
                                      "--seed-file=" + directory_ + "/seed"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(kProgram, argv.data());
    _exit(127);
  }

  std::string directory_;
  pid_t pid_ = -1;
};

}  // namespace scalelab::fakes
