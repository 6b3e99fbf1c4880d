// The environment that the launcher sets for this process, and settings of the process itself at its start.
#pragma once

#include <cstdint>
#include <string>

namespace scalelab::trainer {

// Values of environment variables (docs/users/write-a-training-script.md). RANK, LOCAL_RANK and WORLD_SIZE may be missing
// when a person starts the program by hand. Then Open MPI's variables are used, and without them rank 0 of 1.
struct LaunchEnvironment {
  std::string spec_path;    // argv[1], else SCALELAB_SPEC
  std::string events_path;  // SCALELAB_EVENTS; empty: events go to standard output
  int rank = 0;
  int local_rank = 0;
  int world_size = 0;  // 0: unknown
};

// Throws TrainerError if there is no specification or if a variable is not a number.
LaunchEnvironment ReadLaunchEnvironment(int argc, char** argv);

// Under an MPI launcher, sets the parent-death signal: the kernel kills this process when the launcher dies,
// so that no rank outlives its attempt. Does nothing in a process that was started without an MPI launcher.
void DieWithLauncher();

// Executes this program again with GLIBC_TUNABLES set to use huge pages, unless that variable is set already, as it is in ranks
// that a worker starts. The C library reads the variable before main. Activations fill tens of megabytes, and handling small pages
// takes up to a tenth of a step on a CPU.
void PreferHugePages(char** argv);

// Limits ATen, OpenMP and OpenBLAS to `threads` threads, and rounds denormal numbers to zero.
void ConfigureCpu(int threads);

}  // namespace scalelab::trainer
