#include "worker/trainer/backends/communicators.h"

#include <signal.h>

#include <cmath>
#include <cstring>

#include "catalog/device.h"
#include "worker/trainer/comm/gloo/gloo_communicator.h"
#include "worker/trainer/comm/mpi_communicator.h"
#include "worker/trainer/comm/peers/network.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/comm/staged_communicator.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/errors.h"
#ifdef SCALELAB_NCCL
#include "worker/trainer/comm/nccl_communicator.h"
#endif

namespace scalelab::trainer {
namespace {

using Factory = std::unique_ptr<Communicator> (*)(const TrainingSpec&, const LaunchEnvironment&, at::Device);

std::chrono::milliseconds TimeoutOf(const TrainingSpec& spec) {
  return std::chrono::milliseconds(std::llround(spec.comm_timeout_s * 1000));
}

// Wraps a communicator for host memory, so that it accepts tensors on `device`.
std::unique_ptr<Communicator> OnDevice(std::unique_ptr<Communicator> host, at::Device device) {
  if (device.is_cpu()) return host;
  constexpr size_t kLength = 256;  // all ranks pass the same number of bytes
  std::string identity = DeviceIdentity(device);
  identity.resize(kLength, ' ');
  const std::vector<std::string> identities = host->AllGather(identity);
  if (!GpusMayBeShared()) CheckOneGpuEach(identities);
  return std::make_unique<StagedCommunicator>(std::move(host), device);
}

std::unique_ptr<Communicator> MakeSolo(const TrainingSpec& spec, const LaunchEnvironment& environment,
                                       at::Device) {
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

std::unique_ptr<Communicator> MakeMpi(const TrainingSpec& spec, const LaunchEnvironment& environment,
                                      at::Device device) {
  return OnDevice(std::make_unique<MpiCommunicator>(environment.rank, environment.world_size, spec.ranks,
                                                    TimeoutOf(spec)),
                  device);
}

// Checks rank and number of ranks for backends without MPI.
[[maybe_unused]] void CheckNumbering(const TrainingSpec& spec, const LaunchEnvironment& environment) {
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
}

#ifdef SCALELAB_GLOO
std::unique_ptr<Communicator> MakeGloo(const TrainingSpec& spec, const LaunchEnvironment& environment,
                                       at::Device device) {
  CheckNumbering(spec, environment);
  return OnDevice(std::make_unique<GlooCommunicator>(environment.rank, static_cast<int>(spec.ranks),
                                                     RendezvousOfRun("gloo"), TimeoutOf(spec)),
                  device);
}
#else
constexpr Factory MakeGloo = nullptr;
#endif

#ifdef SCALELAB_NCCL
std::unique_ptr<Communicator> MakeNccl(const TrainingSpec& spec, const LaunchEnvironment& environment,
                                       at::Device device) {
  CheckNumbering(spec, environment);
  if (!device.is_cuda())
    throw TrainerError("backend \"nccl\" needs a GPU for each rank: set device to \"cuda\" or \"auto\"");
  return std::make_unique<NcclCommunicator>(environment.rank, static_cast<int>(spec.ranks), device,
                                            RendezvousOfRun("nccl"), TimeoutOf(spec));
}
#else
constexpr Factory MakeNccl = nullptr;
#endif

struct Entry {
  std::string_view backend;
  Factory make;  // null if the backend is not part of this build
};

constexpr Entry kBackends[] = {{"solo", MakeSolo}, {"mpi", MakeMpi}, {"gloo", MakeGloo}, {"nccl", MakeNccl}};

}  // namespace

std::unique_ptr<Communicator> MakeCommunicator(const TrainingSpec& spec, const LaunchEnvironment& environment,
                                               at::Device device) {
  signal(SIGPIPE, SIG_IGN);  // Gloo and Open MPI write to TCP connections without MSG_NOSIGNAL
  const std::string backend(NativeBackend(spec.backend, spec.ranks, device.is_cuda()));
  for (const Entry& entry : kBackends) {
    if (entry.backend != backend) continue;
    if (entry.make != nullptr) return entry.make(spec, environment, device);
    throw TrainerError(
        spec.backend == backend
            ? "backend \"" + spec.backend + "\" is not part of this build: set backend to \"mpi\""
            : "backend \"" + spec.backend + "\" means \"" + backend +
                  "\" on GPUs, which is not part of this build: build with NCCL, or set backend to \"mpi\"");
  }
  throw TrainerError("unknown backend \"" + spec.backend + "\": use auto, solo, mpi, gloo or nccl");
}

std::unique_ptr<Communicator> MakeControlChannel([[maybe_unused]] const TrainingSpec& spec,
                                                 Communicator& communicator) {
  if (communicator.name() != "nccl") return nullptr;
#ifdef SCALELAB_GLOO
  RendezvousAddress rendezvous = RendezvousOfRun("control");
  if (!rendezvous.host.empty()) {  // nccl uses the port of the run, so this communicator needs another port
    if (communicator.rank() == 0) Listen("0.0.0.0", rendezvous.port);
    const std::vector<std::string> ports =
        communicator.AllGather({reinterpret_cast<const char*>(&rendezvous.port), sizeof rendezvous.port});
    std::memcpy(&rendezvous.port, ports[0].data(), sizeof rendezvous.port);
  }
  return std::make_unique<GlooCommunicator>(communicator.rank(), communicator.size(), rendezvous,
                                            TimeoutOf(spec));
#else
  throw TrainerError(
      "engine \"native/horovod\" negotiates over Gloo if backend is \"nccl\", and Gloo is not part of this "
      "build: build with Gloo, set backend to \"mpi\", or use native/ddp");
#endif
}

std::string NcclLibraryVersion() {
#ifdef SCALELAB_NCCL
  return NcclVersion();
#else
  return "";
#endif
}

}  // namespace scalelab::trainer
