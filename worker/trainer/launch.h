// What the launcher told this process, and what the process does about its surroundings before anything else.
#pragma once

#include <cstdint>
#include <string>

namespace scalelab::trainer {

// From the environment (docs/users/write-a-training-script.md). RANK, LOCAL_RANK and WORLD_SIZE may be
// missing when a person starts the program by hand: Open MPI's own variables are taken then, and 0 of 1
// without them.
struct LaunchEnvironment {
  std::string spec_path;    // argv[1], else SCALELAB_SPEC
  std::string events_path;  // SCALELAB_EVENTS; empty: events go to standard output
  int rank = 0;
  int local_rank = 0;
  int world_size = 0;  // 0: nobody said
};

// Throws TrainerError for a missing specification or a variable that is no number.
LaunchEnvironment ReadLaunchEnvironment(int argc, char** argv);

// Under an MPI launcher: the kernel kills this process when the launcher dies, so that no rank outlives its
// attempt. A process started directly belongs to whoever started it.
void DieWithLauncher();

// Starts this program once more if the C library was not told yet to ask for huge pages, which it reads before
// main: activations fill tens of megabytes, and small pages make up to a tenth of a step on a CPU.
void PreferHugePages(char** argv);

// Uses `threads` cores and no more (ATen, OpenMP and OpenBLAS), and rounds denormal numbers to zero.
void ConfigureCpu(int threads);

// One JSON line: program, its version, versions of LibTorch, MPI and, if it has it, NCCL. Does not initialise
// MPI.
std::string VersionLine();

}  // namespace scalelab::trainer
