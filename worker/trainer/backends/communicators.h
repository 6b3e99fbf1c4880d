// Creates communicators by the names of RunSpec.backend.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// Creates the communicator for `spec.backend`. "auto" means solo for one rank. For several ranks, it means
// nccl on GPUs and mpi on CPUs. The run's tensors are on `device`; mpi and gloo copy GPU tensors through the
// host. Ignores SIGPIPE in this process, so that a write to a rank that has ended is an error. Throws
// TrainerError if the backend is unknown or not in this build, or if the launcher has started a different
// number of ranks than the specification requires.
std::unique_ptr<Communicator> MakeCommunicator(const TrainingSpec& spec, const LaunchEnvironment& environment,
                                               at::Device device = at::kCPU);

// Returns a communicator of the same ranks for small messages in host memory. Returns null if
// `communicator` itself sends such messages without the GPU. Collective. Throws TrainerError if this build
// has no backend for it.
std::unique_ptr<Communicator> MakeControlChannel(const TrainingSpec& spec, Communicator& communicator);

std::string NcclLibraryVersion();  // such as "2.28.9"; "" without NCCL

}  // namespace scalelab::trainer
