#include "worker/process/tagged_processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace scalelab::worker {
namespace {

// Starts a program that has the tag in its environment. With `stubborn`, it ignores SIGTERM. Returns when the program runs.
pid_t StartTagged(const std::string& tag, bool stubborn) {
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ready[1], STDOUT_FILENO);
    const char* const script = stubborn ? "trap '' TERM; echo; exec >&-; while :; do sleep 60; done"
                                        : "echo; exec >&-; exec sleep 60";
    const char* const argv[] = {"sh", "-c", script, nullptr};
    const char* const environment[] = {tag.c_str(), "PATH=/usr/bin:/bin", nullptr};
    execve("/bin/sh", const_cast<char**>(argv), const_cast<char**>(environment));
    _exit(127);
  }
  close(ready[1]);
  char line;
  EXPECT_EQ(read(ready[0], &line, 1), 1);
  close(ready[0]);
  return child;
}

int Unavailable(pid_t) {
  errno = ENOSYS;
  return -1;
}

// Ends the processes with the tag. Then returns the signal that has ended `child`; 0 if it still runs.
int EndOf(pid_t child, const std::string& tag, absl::Duration grace, std::function<int(pid_t)> open) {
  EventLoop loop;
  const auto processes = NewTaggedProcesses(loop, tag, std::move(open));
  // An unreaped child is a zombie, which is no living process.
  processes->End(grace, [&loop] { loop.Stop(); });
  loop.Run();
  int status = 0;
  if (waitpid(child, &status, WNOHANG) == child) return WIFSIGNALED(status) ? WTERMSIG(status) : -1;
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return 0;
}

std::string Tag(const std::string& name) { return absl::StrCat("SCALELAB_TEST_TAG=", name, getpid()); }

TEST(TaggedProcesses, AreGoneWhenTheyHaveEnded) {
  const std::string tag = Tag("a");
  EXPECT_EQ(EndOf(StartTagged(tag, false), tag, absl::Minutes(1), OpenPidfd), SIGTERM);
}

TEST(TaggedProcesses, AreKilledAfterTheGrace) {
  const std::string tag = Tag("b");
  EXPECT_EQ(EndOf(StartTagged(tag, true), tag, absl::Milliseconds(200), OpenPidfd), SIGKILL);
}

TEST(TaggedProcesses, AreEndedWherePidfdsDoNotWork) {
  const std::string tag = Tag("c");
  EXPECT_EQ(EndOf(StartTagged(tag, false), tag, absl::Minutes(1), Unavailable), SIGTERM);
  EXPECT_EQ(EndOf(StartTagged(tag, true), tag, absl::Milliseconds(200), Unavailable), SIGKILL);
}

// Without a free descriptor, /proc cannot be read. If the processes counted as gone then, the worker would start
// the next attempt while they still run.
TEST(TaggedProcesses, AreNotGoneWhileThereAreNoDescriptors) {
  const std::string tag = Tag("d");
  const pid_t child = StartTagged(tag, false);
  EventLoop loop;
  const auto processes = NewTaggedProcesses(loop, tag);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(ProcessesWithEnvironment(tag), std::nullopt);
  bool limited = true;
  processes->End(absl::Minutes(1), [&] {
    EXPECT_FALSE(limited);
    loop.Stop();
  });
  loop.After(absl::Milliseconds(300), [&] {
    limited = false;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  });
  loop.Run();
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, WNOHANG), child);
  EXPECT_TRUE(WIFSIGNALED(status));
}

}  // namespace
}  // namespace scalelab::worker
