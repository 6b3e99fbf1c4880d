#include "tests/e2e/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

extern char** environ;

namespace scalelab::e2e {
namespace {

pid_t Spawn(const std::vector<std::string>& argv, const std::map<std::string, std::string>& env, int out,
            int err) {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    if (!env.contains(entry.substr(0, entry.find('=')))) environment.push_back(entry);
  }
  for (const auto& [name, value] : env) environment.push_back(name + "=" + value);
  std::vector<char*> args, envp;
  for (const std::string& a : argv) args.push_back(const_cast<char*>(a.c_str()));
  for (const std::string& e : environment) envp.push_back(const_cast<char*>(e.c_str()));
  args.push_back(nullptr);
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  posix_spawn_file_actions_adddup2(&actions, err, 2);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, args[0], &actions, nullptr, args.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

int CodeOf(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

std::vector<pid_t> Matching(const char* file, const std::string& text) {
  std::vector<pid_t> found;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == getpid()) continue;
    const std::string base = std::string("/proc/") + entry->d_name;
    const std::string stat = ReadFile(base + "/stat");
    const size_t end = stat.rfind(')');
    if (end == std::string::npos || end + 2 >= stat.size() || stat[end + 2] == 'Z') continue;
    std::string content = ReadFile(base + "/" + file);
    std::replace(content.begin(), content.end(), '\0', ' ');
    if (content.find(text) != std::string::npos) found.push_back(pid);
  }
  closedir(proc);
  return found;
}

}  // namespace

std::vector<std::string> As(const std::string& account, const std::vector<std::string>& argv) {
  const passwd* entry = getpwnam(account.c_str());
  if (entry == nullptr) return {"false"};
  std::vector<std::string> words = {"setpriv", "--reuid=" + std::to_string(entry->pw_uid),
                                    "--regid=" + std::to_string(entry->pw_gid), "--clear-groups"};
  words.insert(words.end(), argv.begin(), argv.end());
  return words;
}

double Now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void Pause(double seconds) {
  timespec t{static_cast<time_t>(seconds), static_cast<long>((seconds - static_cast<time_t>(seconds)) * 1e9)};
  nanosleep(&t, nullptr);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

Output RunProgram(const std::vector<std::string>& argv, const std::map<std::string, std::string>& env,
                  double seconds) {
  Output output;
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return output;
  const pid_t pid = Spawn(argv, env, out[1], err[1]);
  close(out[1]);
  close(err[1]);
  const double end = Now() + seconds;
  pollfd fds[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* texts[2] = {&output.out, &output.err};
  int open = 2;
  bool killed = pid < 0;
  while (open > 0 && !killed) {
    const int wait = static_cast<int>((end - Now()) * 1000);
    if (wait <= 0 || poll(fds, 2, wait) == 0) {
      kill(pid, SIGKILL);
      killed = true;
    }
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || (fds[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      char buffer[65536];
      const ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
      if (n > 0) texts[i]->append(buffer, static_cast<size_t>(n));
      if (n == 0) {
        fds[i].fd = -1;
        --open;
      }
    }
  }
  close(out[0]);
  close(err[0]);
  int status = 0;
  if (pid > 0) waitpid(pid, &status, 0);
  output.code = killed ? 124 : CodeOf(status);
  return output;
}

Background::Background(const std::vector<std::string>& argv, const std::string& log,
                       const std::map<std::string, std::string>& env) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return;
  const int err = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  pid_ = Spawn(argv, env, out[1], err);
  close(out[1]);
  close(err);
  out_ = out[0];
}

Background::~Background() {
  if (pid_ > 0 && !ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) close(out_);
}

std::string Background::Line(double seconds) {
  const double end = Now() + seconds;
  while (true) {
    const size_t newline = buffer_.find('\n');
    if (newline != std::string::npos) {
      const std::string line = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      return line;
    }
    pollfd fd{out_, POLLIN, 0};
    const int wait = static_cast<int>((end - Now()) * 1000);
    if (wait <= 0 || poll(&fd, 1, wait) <= 0) return "";
    char piece[4096];
    const ssize_t n = read(out_, piece, sizeof piece);
    if (n <= 0) return "";
    buffer_.append(piece, static_cast<size_t>(n));
  }
}

void Background::Signal(int signal) {
  if (pid_ > 0 && !ended_) kill(pid_, signal);
}

int Background::Wait(double seconds) {
  if (ended_) return code_;
  int status = 0;
  const bool done = Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, seconds);
  if (!done) return -1;
  ended_ = true;
  code_ = CodeOf(status);
  return code_;
}

int64_t ResidentBytes(pid_t pid) {
  int64_t size = 0, resident = 0;
  std::istringstream(ReadFile("/proc/" + std::to_string(pid) + "/statm")) >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::vector<pid_t> ProcessesWith(const std::string& text) { return Matching("cmdline", text); }
std::vector<pid_t> ProcessesInEnvironment(const std::string& text) { return Matching("environ", text); }

std::string CommandLine(pid_t pid) {
  std::string text = ReadFile("/proc/" + std::to_string(pid) + "/cmdline");
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

}  // namespace scalelab::e2e
