#include "study/engine_checks.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "catalog/device.h"
#include "catalog/rank_variables.h"
#include "study/values.h"

namespace scalelab {
namespace {

bool Takes(const Engine::Names& names, absl::string_view word) {
  return names.empty() || std::find(names.begin(), names.end(), word) != names.end();
}

// Returns the engine's backend for this device, or "auto" if it has none.
std::string NearestBackend(const Engine& engine, bool cpu) {
  for (absl::string_view backend : engine.backends) {
    if ((backend == "nccl") != cpu) return std::string(backend);
  }
  return "auto";
}

std::string NearestOf(const Engine::Names& names, absl::string_view word) {
  const std::string nearest = Nearest(word, names);
  return nearest.empty() ? std::string(names.front()) : nearest;
}

// Returns the engines to propose to a study that sets this parameter.
std::string EngineWith(const RunParameter& parameter) {
  const std::vector<absl::string_view> names = ReadingEngines(parameter);
  const bool native = std::ranges::any_of(names, [](absl::string_view name) { return RunsTrainer(name); });
  return native || names.empty() ? "a native engine" : std::string(names.front());
}

// Appends an error if the engine does not support the run's gradient_compression.
void CheckCompression(const Engine& engine, const v1::RunSpec& run, std::vector<EngineMisfit>* misfits) {
  const std::string& form = run.gradient_compression();
  if (form.empty() || form == "none" || !engine.Reads(ParameterGroup::kCompression)) return;
  if (!Takes(engine.compressions, form)) {
    misfits->push_back({"gradient_compression",
                        absl::StrCat("engine ", engine.name, " does not have gradient_compression ", form,
                                     "; use ", absl::StrJoin(engine.compressions, ", "), ", or native/ddp")});
  } else if (run.precision() == "amp-fp16" && CompressesWithErrors(form)) {
    misfits->push_back(
        {"gradient_compression",
         absl::StrCat("gradient_compression ", form,
                      " cannot run with precision amp-fp16, whose loss scale changes between steps; use "
                      "amp-bf16, or gradient_compression fp16")});
  }
}

// Appends an error if an engine with parameter servers, or with several replicas in one process, does not
// support the ranks and GPUs of the run.
void CheckRoles(const Engine& engine, const v1::RunSpec& run, bool cpu, std::vector<EngineMisfit>* misfits) {
  if (engine.Reads(ParameterGroup::kServers) && run.ranks() > 1 && run.server_ranks() >= run.ranks()) {
    misfits->push_back(
        {"server_ranks", absl::StrCat("server_ranks ", run.server_ranks(), " leaves none of the ",
                                      run.ranks(), " ranks to train; use at most ", run.ranks() - 1)});
  }
  if (!engine.Reads(ParameterGroup::kReplicas)) return;
  if (run.ranks() > 1) {
    misfits->push_back({"ranks", absl::StrCat("engine ", engine.name, " is one process, not ", run.ranks(),
                                              "; use ranks 1 and set replicas, or use native/ddp")});
  }
  if (!cpu && run.replicas() > run.gpus_per_rank()) {
    misfits->push_back(
        {"gpus_per_rank", absl::StrCat("replicas ", run.replicas(), " need a GPU each, not ",
                                       run.gpus_per_rank(), "; set gpus_per_rank to ", run.replicas())});
  }
}

// Appends an error for each variable with a number of threads that has no effect in the engine.
void CheckThreads(const Engine& engine, const v1::RunSpec& run, std::vector<EngineMisfit>* misfits) {
  if (run.env().fields().empty()) return;
  for (const ThreadVariable& variable : ThreadVariables()) {
    const std::string name(absl::StripPrefix(variable.key, "env."));
    if (!run.env().fields().contains(name) || !Takes(variable.replaced_by, engine.name)) continue;
    misfits->push_back(
        {variable.key,
         absl::StrCat("engine ", engine.name, " ignores ", name,
                      ", because cpus_per_rank is the number of threads of a rank; set cpus_per_rank, "
                      "which may be an axis, and remove ",
                      name, " from env")});
  }
}

// Appends an error for each variable that the engine, or its launcher, sets itself.
void CheckOwnVariables(const Engine& engine, const v1::RunSpec& run, std::vector<EngineMisfit>* misfits) {
  if (run.env().fields().empty()) return;
  for (const EngineVariable& variable : EngineVariables()) {
    const std::string name(absl::StripPrefix(variable.key, "env."));
    if (!run.env().fields().contains(name) || !Takes(variable.engines, engine.name)) continue;
    if (!variable.launcher.empty() && run.launcher() != variable.launcher) continue;
    const std::string launcher =
        variable.launcher.empty() ? "" : absl::StrCat(" with launcher ", variable.launcher);
    misfits->push_back(
        {variable.key, absl::StrCat("engine ", engine.name, launcher, " sets ", name, " itself; ",
                                    variable.instead, ", and remove ", name, " from env")});
  }
}

// Returns the values of the run that a native engine does not support.
std::vector<EngineMisfit> TrainerMisfits(const Engine& engine, const v1::RunSpec& run, bool cpu) {
  std::vector<EngineMisfit> misfits;
  if (run.backend() == "solo" && run.ranks() > 1) {
    misfits.push_back({"backend", absl::StrCat("backend solo is for one rank, not ", run.ranks(),
                                               "; use auto, mpi or gloo")});
  }
  if (cpu && run.backend() == "nccl") {
    misfits.push_back(
        {"backend", run.gpus_per_rank() > 0
                        ? "backend nccl needs device cuda, not cpu; change device, or use mpi or gloo"
                        : "backend nccl needs GPUs; set resources.gpus_per_rank, or use mpi or gloo"});
  }
  if (run.ranks() > 1 && !run.model().empty() && !Takes(engine.models, run.model())) {
    misfits.push_back(
        {"model", absl::StrCat("engine ", engine.name, " does not have model ", run.model(), "; use ",
                               absl::StrJoin(engine.models, ", "), ", or native/ddp")});
  }
  const bool divides = run.ranks() > 1 || engine.Reads(ParameterGroup::kReplicas);
  if (divides && !Takes(engine.batch_norms, run.batch_norm())) {
    misfits.push_back(
        {"batch_norm", absl::StrCat("engine ", engine.name, " cannot run batch_norm ", run.batch_norm(),
                                    "; use batch_norm train, or native/ddp")});
  }
  if (engine.Reads(ParameterGroup::kAllReduce) &&
      (run.all_reduce() == "ring" || run.all_reduce() == "hierarchical") &&
      NativeBackend(run.backend(), run.ranks(), !cpu) == "nccl") {
    misfits.push_back(
        {"all_reduce", absl::StrCat("all_reduce ", run.all_reduce(),
                                    " waits on the host for each message, which backend nccl does on "
                                    "the GPU; use all_reduce library, or backend mpi or gloo")});
  }
  if (run.ranks() > 1 && !Takes(engine.precisions, run.precision())) {
    misfits.push_back(
        {"precision", absl::StrCat("engine ", engine.name, " does not have precision ", run.precision(),
                                   "; use ", NearestOf(engine.precisions, run.precision()), " (it has ",
                                   absl::StrJoin(engine.precisions, ", "), "), or native/ddp")});
  }
  CheckCompression(engine, run, &misfits);
  CheckRoles(engine, run, cpu, &misfits);
  CheckOwnVariables(engine, run, &misfits);
  CheckThreads(engine, run, &misfits);
  return misfits;
}

}  // namespace

bool UsesThreadVariable(const Engine& engine, absl::string_view key) {
  return std::ranges::any_of(ThreadVariables(), [&](const ThreadVariable& variable) {
    return variable.key == key && Takes(variable.used_by, engine.name);
  });
}

std::vector<EngineMisfit> EngineMisfits(const v1::RunSpec& run, const v1::Resources& resources) {
  std::vector<EngineMisfit> misfits;
  const Engine* engine = FindEngine(run.engine());
  if (engine == nullptr) return misfits;
  if (engine->program == Engine::Program::kCommand) {
    CheckOwnVariables(*engine, run, &misfits);
    return misfits;
  }
  const bool cpu = !UsesGpus(run.device(), run.gpus_per_rank());
  if (engine->program == Engine::Program::kTrainer) return TrainerMisfits(*engine, run, cpu);
  const std::string who = absl::StrCat("engine ", engine->name);
  if (engine->gpus == Engine::Gpus::kRequired && cpu) {
    misfits.push_back(
        {"engine", absl::StrCat(who, " needs GPUs; set resources.gpus_per_rank, for example to 1, or use ",
                                "pytorch/ddp")});
  }
  if (engine->gpus == Engine::Gpus::kNever && !cpu) {
    misfits.push_back({"engine", absl::StrCat(who,
                                              " trains on CPUs only; remove resources.gpus_per_rank, set "
                                              "device to cpu, or use another engine")});
  }
  const std::string backend = NearestBackend(*engine, cpu);
  if (run.backend() != "auto" && !Takes(engine->backends, run.backend())) {
    misfits.push_back({"backend", absl::StrCat(who, " cannot use backend ", run.backend(), "; use ",
                                               backend == "auto" ? "auto" : backend + " or auto")});
  } else if (run.backend() == "nccl" && cpu) {
    misfits.push_back(
        {"backend", absl::StrCat("backend nccl needs GPUs; set resources.gpus_per_rank, or use ", backend)});
  }
  const auto check = [&](absl::string_view key, absl::string_view verb, const Engine::Names& names,
                         const std::string& word) {
    if (word.empty() || Takes(names, word)) return;
    misfits.push_back(
        {key,
         absl::StrCat(who, " ", verb, " ", key, " ", word, "; use ", NearestOf(names, word),
                      names.size() == 1 ? "" : absl::StrCat(" (it has ", absl::StrJoin(names, ", "), ")"),
                      ", or a native engine")});
  };
  check("precision", "does not have", engine->precisions, run.precision());
  check("model", "does not have", engine->models, run.model());
  check("batch_norm", "cannot run", engine->batch_norms, run.batch_norm());
  CheckCompression(*engine, run, &misfits);
  CheckOwnVariables(*engine, run, &misfits);
  CheckThreads(*engine, run, &misfits);
  // The adapters refuse these settings too (worker/adapters/scalelab/training.py).
  for (const RunParameter& parameter : RunParameters()) {
    if (!IsNativeOnly(parameter) || engine->Reads(parameter.group) || !HasField(parameter, run)) continue;
    const std::string value = FieldText(parameter, run), usual = DefaultText(parameter);
    if (value == usual) continue;
    misfits.push_back({parameter.name, absl::StrCat(who, " does not have ", parameter.name, " ", value,
                                                    "; use ", usual, ", or ", EngineWith(parameter))});
  }
  if (run.cuda_graph() && !run.compile() && engine->Reads(ParameterGroup::kGraph)) {
    misfits.push_back({"cuda_graph", absl::StrCat(who,
                                                  " records only what torch.compile makes; add compile: "
                                                  "true, or remove cuda_graph")});
  }
  if (engine->one_process && resources.ranks_per_node() > 0 && resources.ranks_per_node() < run.ranks()) {
    misfits.push_back({"resources.ranks_per_node", absl::StrCat(who, " is one process, so its ", run.ranks(),
                                                                " ranks share a node; set ranks_per_node to ",
                                                                run.ranks(), ", or remove it")});
  }
  return misfits;
}

}  // namespace scalelab
