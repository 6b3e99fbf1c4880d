// Creates communicators by the names of RunSpec.backend.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// Creates the communicator for `spec.backend`. "auto" means solo for one rank, for several nccl on GPUs and mpi
// on CPUs.
// `device` holds the run's tensors; mpi and gloo copy GPU tensors through the host. Throws TrainerError
// if the backend is unknown or not in this build, or if the launcher started another number of ranks than
// the specification selects.
std::unique_ptr<Communicator> MakeCommunicator(const TrainingSpec& spec, const LaunchEnvironment& environment,
                                               at::Device device = at::kCPU);

// Returns a communicator of the same ranks over the host, for messages about tensors; null if `communicator` sends them over the
// host itself. Collective. Throws TrainerError if this build cannot make one.
std::unique_ptr<Communicator> MakeControlChannel(const TrainingSpec& spec, Communicator& communicator);

// Ends all ranks of this run with `status` after a failure. Does not return if MPI is running,
// does nothing otherwise.
void AbortOtherRanks(int status);

std::string MpiLibraryVersion();
std::string NcclLibraryVersion();  // "2.28.9"; empty without NCCL

}  // namespace scalelab::trainer
