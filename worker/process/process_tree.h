// Reads the process tree from /proc. Every answer may be outdated when it is returned, so callers that act on
// one must check again afterwards.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace scalelab::worker {

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  uint64_t start_time = 0;  // distinguishes the process from a later one with the same pid
};

// Returns every living descendant of `root`, parents before their children. Zombies do not count as living.
// Reads all of /proc once.
std::vector<ProcessInfo> DescendantsOf(pid_t root);

// Reads the direct children of the calling thread, including zombies, from one file. Returns false if the
// kernel does not provide this file.
bool ReadOwnChildren(std::vector<pid_t>* children);

// Returns whether the process was started with `entry` ("NAME=value") in its environment. Returns false also
// if the environment cannot be read; then `*error` is the number of the error of open(2) or read(2), else 0.
bool HasEnvironment(pid_t pid, const std::string& entry, int* error = nullptr);

// Returns every living process of this machine that was started with `entry` ("NAME=value") in its
// environment, as far as permissions allow. Returns nothing if /proc cannot be read completely now, because
// this process or the machine has no free descriptors or no memory.
std::optional<std::vector<ProcessInfo>> ProcessesWithEnvironment(const std::string& entry);

// Opens a pidfd of a process; -1 with errno if that fails.
int OpenPidfd(pid_t pid);

// Sends a signal to this process, but not to another one that has got its pid. Where pidfds do not work, a process that gets
// the pid within microseconds may receive it.
void Signal(const ProcessInfo& process, int signal);

// Kills every descendant of the calling process, which must be a subreaper, and waits until none is left.
void KillAllDescendants();

}  // namespace scalelab::worker
