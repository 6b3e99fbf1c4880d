// What /proc says of the processes below one process. Reads only what it is asked for; every answer may be
// outdated the moment it is given, so whoever acts on it looks again afterwards.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace scalelab::worker {

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  uint64_t start_time = 0;  // tells the process from a later one with the same pid
};

// Every living descendant of `root` (zombies are not living). One walk over /proc.
std::vector<ProcessInfo> DescendantsOf(pid_t root);

// Direct children of the calling thread, zombies too, in one read. False: this kernel does not say.
bool ReadOwnChildren(std::vector<pid_t>* children);

// Whether the process was started with this "NAME=value" in its environment. False also when it may not be
// read.
bool HasEnvironment(pid_t pid, const std::string& entry);

// Every living process on this machine that was started with this "NAME=value", as far as it may be read.
std::vector<ProcessInfo> ProcessesWithEnvironment(const std::string& entry);

// Sends a signal to exactly this process, not to one that has its pid now.
void Signal(const ProcessInfo& process, int signal);

// Kills every descendant of the calling process, which must be a subreaper, and waits until none is left.
void KillAllDescendants();

}  // namespace scalelab::worker
