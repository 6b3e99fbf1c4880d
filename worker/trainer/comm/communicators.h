// Which communicators there are, by the names of RunSpec.backend.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// "auto" is solo for one rank, else mpi. Throws TrainerError for an unknown or missing backend, and when the
// number of ranks that the launcher really started is not the number that the specification asks for.
std::unique_ptr<Communicator> MakeCommunicator(const TrainingSpec& spec,
                                               const LaunchEnvironment& environment);

// After a failure: ends all ranks of this run with `status` if MPI is running (does not return then).
void AbortOtherRanks(int status);

std::string MpiLibraryVersion();

}  // namespace scalelab::trainer
