// Which communicators there are, by the names of RunSpec.backend.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// "auto" is solo for one rank, else mpi. `device` is where the run's tensors lie; mpi and gloo take those of
// a GPU by way of the host. Throws TrainerError for an unknown or missing backend, and when the number of
// ranks that the launcher really started is not the number that the specification asks for.
std::unique_ptr<Communicator> MakeCommunicator(const TrainingSpec& spec, const LaunchEnvironment& environment,
                                               at::Device device = at::kCPU);

// After a failure: ends all ranks of this run with `status` if MPI is running (does not return then).
void AbortOtherRanks(int status);

std::string MpiLibraryVersion();
std::string NcclLibraryVersion();  // "2.28.9"; empty without NCCL

}  // namespace scalelab::trainer
