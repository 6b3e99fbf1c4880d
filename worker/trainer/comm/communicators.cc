#include "worker/trainer/comm/communicators.h"

#include <cmath>

#include "worker/trainer/comm/gloo_communicator.h"
#include "worker/trainer/comm/mpi_communicator.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using Factory = std::unique_ptr<Communicator> (*)(const TrainingSpec&, const LaunchEnvironment&);

std::chrono::milliseconds TimeoutOf(const TrainingSpec& spec) {
  return std::chrono::milliseconds(std::llround(spec.comm_timeout_s * 1000));
}

std::unique_ptr<Communicator> MakeSolo(const TrainingSpec& spec, const LaunchEnvironment& environment) {
  if (spec.ranks != 1) {
    throw TrainerError("backend \"solo\" is for one rank, but the run has " + std::to_string(spec.ranks) +
                       ": set backend to \"mpi\" or \"auto\"");
  }
  if (environment.world_size > 1) {
    throw TrainerError("the launcher started " + std::to_string(environment.world_size) +
                           " ranks for a run of one rank: start one process",
                       ErrorKind::kCommunication);
  }
  return std::make_unique<SoloCommunicator>();
}

std::unique_ptr<Communicator> MakeMpi(const TrainingSpec& spec, const LaunchEnvironment& environment) {
  return std::make_unique<MpiCommunicator>(environment.rank, environment.world_size, spec.ranks,
                                           TimeoutOf(spec));
}

#ifdef SCALELAB_GLOO
std::unique_ptr<Communicator> MakeGloo(const TrainingSpec& spec, const LaunchEnvironment& environment) {
  if (environment.world_size != 0 && environment.world_size != spec.ranks) {
    throw TrainerError("the launcher set WORLD_SIZE to " + std::to_string(environment.world_size) +
                           ", but the run asks for " + std::to_string(spec.ranks) +
                           " ranks: launch as many processes as the specification says",
                       ErrorKind::kCommunication);
  }
  if (environment.rank >= spec.ranks) {
    throw TrainerError("environment variable RANK is " + std::to_string(environment.rank) +
                           ", but the run has " + std::to_string(spec.ranks) + " ranks: number them from 0",
                       ErrorKind::kCommunication);
  }
  return std::make_unique<GlooCommunicator>(environment.rank, static_cast<int>(spec.ranks), RendezvousOfRun(),
                                            TimeoutOf(spec));
}
#else
constexpr Factory MakeGloo = nullptr;
#endif

std::unique_ptr<Communicator> MakeAuto(const TrainingSpec& spec, const LaunchEnvironment& environment) {
  return spec.ranks == 1 ? MakeSolo(spec, environment) : MakeMpi(spec, environment);
}

struct Entry {
  std::string_view backend;
  Factory make;  // null: known, but not part of this build
};

constexpr Entry kBackends[] = {
    {"auto", MakeAuto}, {"solo", MakeSolo}, {"mpi", MakeMpi}, {"gloo", MakeGloo}, {"nccl", nullptr}};

}  // namespace

std::unique_ptr<Communicator> MakeCommunicator(const TrainingSpec& spec,
                                               const LaunchEnvironment& environment) {
  for (const Entry& entry : kBackends) {
    if (entry.backend != spec.backend) continue;
    if (entry.make != nullptr) return entry.make(spec, environment);
    throw TrainerError("backend \"" + spec.backend +
                       "\" is not part of this build: set backend to \"mpi\" or \"auto\"");
  }
  throw TrainerError("there is no backend \"" + spec.backend + "\": use auto, solo, mpi, gloo or nccl");
}

}  // namespace scalelab::trainer
