// What this node is.
#pragma once

#include <string>
#include <vector>

#include "scalelab/v1/worker.pb.h"

namespace scalelab::worker {

// Cores this process may use, CPU model, memory, GPU models, operating system. `software` stays empty.
v1::NodeInfo ReadNodeInfo();
// Numbers of the cores this process may use; none where the system cannot list them (it has over 1,024).
std::vector<int> AllowedCpus();
// Name of this machine.
std::string HostName();
// Whether processes here may copy from each other's memory (process_vm_readv): containers and Yama often
// forbid it.
bool SingleCopyAllowed();
// SHA-256 of a file in hexadecimal; empty when it cannot be read.
std::string FileSha256(const std::string& path);
std::string Sha256(const std::string& bytes);

}  // namespace scalelab::worker
