// Describes this node: cores, memory, GPUs, system.
#pragma once

#include <string>
#include <vector>

#include "scalelab/v1/worker.pb.h"

namespace scalelab::worker {

// Returns the number of usable cores, the CPU model, the memory, the GPU models and the operating system.
// Leaves `software` empty.
v1::NodeInfo ReadNodeInfo();
// Returns the ids of the cores this process may use; empty if the affinity mask does not fit (more
// than 1,024 cores).
std::vector<int> AllowedCpus();
// Returns the machine's host name.
std::string HostName();
// Returns whether a process may read a sibling's memory (process_vm_readv). Containers and Yama
// often forbid it.
bool SingleCopyAllowed();
// Returns the SHA-256 of a file in hexadecimal; empty if the file cannot be read.
std::string FileSha256(const std::string& path);
// Returns the SHA-256 of `bytes` in hexadecimal.
std::string Sha256(const std::string& bytes);

}  // namespace scalelab::worker
