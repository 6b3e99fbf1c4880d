#include "worker/trainer/loop/trainer_main.h"

#include <torch/version.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "worker/trainer/backends/communicators.h"
#include "worker/trainer/checkpoint/parameters.h"
#include "worker/trainer/comm/mpi_communicator.h"
#include "worker/trainer/data/image_server.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/loop/train_loop.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {
namespace {

int Fail(const std::exception_ptr& error, EventWriter* events) {
  const ErrorReport report = DescribeError(error);
  std::fprintf(stderr, "scalelab-trainer: %s\n", report.message.c_str());
  try {
    if (events != nullptr) events->Error(report.message, report.kind);
  } catch (const std::exception&) {
    // The event file failed. Standard error already has the message.
  }
  AbortOtherRanks(1);
  return 1;
}

// Returns one JSON line with the name and version of the program and the versions of LibTorch, MPI and, if
// this build has it, NCCL. MPI is not initialized.
std::string VersionLine() {
  nlohmann::json versions{{"name", "scalelab-trainer"},
                          {"version", SCALELAB_VERSION},
                          {"libtorch", TORCH_VERSION},
                          {"mpi", MpiLibraryVersion()}};
  if (const std::string nccl = NcclLibraryVersion(); !nccl.empty()) versions["nccl"] = nccl;
  return versions.dump();
}

constexpr char kHelp[] =
    "Usage: scalelab-trainer [SPEC]\n\n"
    "Trains as one rank of a run. scalelab-worker starts it and sets its environment; SPEC is the "
    "specification of the\n"
    "run, $SCALELAB_SPEC if not given. Events go to $SCALELAB_EVENTS.\n\n"
    "  --version  Print the versions of the program and its libraries as JSON\n"
    "  --help     Print this text";

int Run(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts(VersionLine().c_str());
    return 0;
  }
  const std::string_view command = argc >= 2 ? argv[1] : "";
  if (command == "--help" || command == "-h") {
    std::puts(kHelp);
    return 0;
  }
  if (command == "--print-initial-parameters" || command == "--serve-images") {
    try {
      const TrainingSpec spec = ReadTrainingSpec(ReadLaunchEnvironment(argc - 1, argv + 1).spec_path);
      ConfigureCpu(static_cast<int>(spec.cpus_per_rank));
      command == "--serve-images" ? ServeImages(spec, std::cin, std::cout)
                                  : PrintInitialParameters(spec, std::cout);
      return 0;
    } catch (...) {
      return Fail(std::current_exception(), nullptr);
    }
  }
  PreferHugePages(argv);
  DieWithLauncher();
  std::unique_ptr<EventWriter> events;
  try {
    const LaunchEnvironment environment = ReadLaunchEnvironment(argc, argv);
    events = std::make_unique<EventWriter>(environment.events_path);
    const TrainingSpec spec = ReadTrainingSpec(environment.spec_path);
    const at::Device device = ChooseDevice(spec, environment.local_rank);
    const std::unique_ptr<Communicator> communicator = MakeCommunicator(spec, environment, device);
    Train(spec, device, *communicator, *events);
    return 0;
  } catch (...) {
    return Fail(std::current_exception(), events.get());
  }
}

}  // namespace

int TrainerMain(int argc, char** argv) {
  const int status = Run(argc, argv);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers report after main
  // All files and connections are closed. Skip the destructors of LibTorch's global objects, which
  // only take time.
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(status);
#endif
  return status;
}

}  // namespace scalelab::trainer
