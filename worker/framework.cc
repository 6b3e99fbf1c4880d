#include "worker/framework.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/device.h"
#include "catalog/engines.h"
#include "catalog/python_environment.h"
#include "catalog/rank_variables.h"
#include "worker/free_port.h"
#include "worker/own_parameters.h"

namespace scalelab::worker {
namespace {

bool Runs(absl::string_view name, Engine::Program program) {
  const Engine* engine = FindEngine(name);
  return engine != nullptr && engine->program == program;
}

class NativeFramework final : public Framework {
 public:
  explicit NativeFramework(std::string trainer) : trainer_(std::move(trainer)) {}

  bool Serves(absl::string_view engine) const override { return Runs(engine, Engine::Program::kTrainer); }

  absl::StatusOr<RankProgram> ProgramOf(const DesiredAttempt& attempt) const override {
    const v1::RunSpec& spec = attempt.spec();
    if (access(trainer_.c_str(), X_OK) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("Engine ", spec.engine(), " needs the trainer, but '", trainer_,
                       "' is not an executable program; build it (SCALELAB_TRAINER=ON) or set --trainer."));
    }
    // Ranks of gloo and nccl always rendezvous in the attempt's directory, with any launcher. On Slurm, MPI
    // needs its launcher even for one rank.
    const bool gpus = UsesGpus(spec.device(), spec.gpus_per_rank());
    const bool mpi = NativeBackend(spec.backend(), spec.ranks(), gpus) == "mpi";
    RankProgram program;
    program.argv = {trainer_};
    // Set this variable here. Otherwise the trainer would set it and execute itself again, which
    // loads LibTorch twice.
    program.defaults = {{kMallocTunables, kHugePages}};
    program.rendezvous = mpi ? Rendezvous::kMpi : Rendezvous::kNone;
    return program;
  }

 private:
  const std::string trainer_;
};

class PythonFramework final : public Framework {
 public:
  PythonFramework(std::string adapters, std::string trainer)
      : adapters_(std::move(adapters)), trainer_(std::move(trainer)) {}

  bool Serves(absl::string_view engine) const override { return Runs(engine, Engine::Program::kAdapter); }

  absl::StatusOr<RankProgram> ProgramOf(const DesiredAttempt& attempt) const override {
    const v1::RunSpec& spec = attempt.spec();
    const Engine& engine = *FindEngine(spec.engine());
    const std::string script = absl::StrCat(adapters_, "/", engine.script);
    const v1::FrameworkEnvironment& sent = attempt.environment();
    const PythonEnvironment environment{
        sent.venv(), {sent.modules().begin(), sent.modules().end()}, sent.container()};
    if (const auto missing = FindMissing(engine, environment, script)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Engine ", engine.name, " cannot run here: ", missing->reason, "; try ", missing->fix, "."));
    }
    const std::string data = absl::StartsWith(spec.data_dir(), "/") ? spec.data_dir() : "";
    const std::string trainer_directory = std::filesystem::path(trainer_).parent_path();
    RankProgram program;
    program.argv =
        PythonCommand(environment, {script},
                      {{attempt.directory(), adapters_, trainer_directory, data}, spec.gpus_per_rank() > 0});
    // Packages in the home directory would shadow those of the environment.
    program.environment = {{"SCALELAB_TRAINER", trainer_}, {"PYTHONNOUSERSITE", "1"}};
    // On Slurm, MPI needs its launcher even for one rank.
    program.rendezvous = engine.rendezvous;
    program.one_process = engine.one_process;
    return program;
  }

 private:
  const std::string adapters_, trainer_;
};

class CustomFramework final : public Framework {
 public:
  bool Serves(absl::string_view engine) const override { return Runs(engine, Engine::Program::kCommand); }

  absl::StatusOr<RankProgram> ProgramOf(const DesiredAttempt& attempt) const override {
    const v1::RunSpec& spec = attempt.spec();
    if (spec.command().empty()) {
      return absl::FailedPreconditionError("Engine custom has no command; set the study's `command`.");
    }
    absl::StatusOr<std::vector<std::string>> command = ExpandedCommand(spec);
    if (!command.ok()) return command.status();
    const int port = FreePort(attempt.token());
    if (port == 0)
      return absl::FailedPreconditionError("No TCP port from 20000 to 29999 is free on this node.");
    RankProgram program;
    program.argv = *std::move(command);
    program.launcher = spec.launcher().empty() ? "plain" : spec.launcher();
    const bool mpi = program.launcher == "mpirun" || program.launcher == "srun";
    program.rendezvous = mpi ? Rendezvous::kMpi : Rendezvous::kNone;
    program.environment = {{"MASTER_ADDR", attempt.nodes_size() > 1 ? attempt.nodes(0) : "127.0.0.1"},
                           {"MASTER_PORT", absl::StrCat(port)}};
    return program;
  }
};

}  // namespace

std::unique_ptr<Framework> NewNativeFramework(std::string trainer_program) {
  return std::make_unique<NativeFramework>(std::move(trainer_program));
}

std::unique_ptr<Framework> NewPythonFramework(std::string adapters, std::string trainer_program) {
  return std::make_unique<PythonFramework>(std::move(adapters), std::move(trainer_program));
}

std::unique_ptr<Framework> NewCustomFramework() { return std::make_unique<CustomFramework>(); }

absl::StatusOr<const Framework*> FrameworkOf(const Frameworks& frameworks, absl::string_view engine) {
  for (const auto& framework : frameworks) {
    if (framework->Serves(engine)) return framework.get();
  }
  return absl::UnimplementedError(absl::StrCat("This worker does not support engine '", engine,
                                               "'; supported: ", absl::StrJoin(EngineNames(), ", "), "."));
}

}  // namespace scalelab::worker
