#include "study/engine_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

// Appends the misfit of a form of gradients that the engine does not have.
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
  if (run.ranks() > 1 && !Takes(engine.batch_norms, run.batch_norm())) {
    misfits.push_back(
        {"batch_norm", absl::StrCat("engine ", engine.name, " cannot run batch_norm ", run.batch_norm(),
                                    "; use batch_norm train, or native/ddp")});
  }
  CheckCompression(engine, run, &misfits);
  return misfits;
}

}  // namespace

std::vector<EngineMisfit> EngineMisfits(const v1::RunSpec& run, const v1::Resources& resources) {
  std::vector<EngineMisfit> misfits;
  const Engine* engine = FindEngine(run.engine());
  if (engine == nullptr || engine->program == Engine::Program::kCommand) return misfits;
  const bool cpu = run.device() == "cpu" || (run.device() == "auto" && run.gpus_per_rank() == 0);
  if (engine->program == Engine::Program::kTrainer) return TrainerMisfits(*engine, run, cpu);
  const std::string who = absl::StrCat("engine ", engine->name);
  if (engine->gpus == Engine::Gpus::kRequired && cpu) {
    misfits.push_back(
        {"engine", absl::StrCat(who, " needs GPUs; set resources.gpus_per_rank, for example to 1, or use ",
                                "pytorch/ddp")});
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
  // The adapters refuse these too (worker/adapters/scalelab/training.py).
  for (const RunParameter& parameter : RunParameters()) {
    if (!IsNativeOnly(parameter) || engine->Reads(parameter.group) || !HasField(parameter, run)) continue;
    const std::string value = FieldText(parameter, run), usual = DefaultText(parameter);
    if (value == usual) continue;
    misfits.push_back({parameter.name, absl::StrCat(who, " does not have ", parameter.name, " ", value,
                                                    "; use ", usual, ", or a native engine")});
  }
  if (engine->one_process && resources.ranks_per_node() > 0 && resources.ranks_per_node() < run.ranks()) {
    misfits.push_back({"resources.ranks_per_node", absl::StrCat(who, " is one process, so its ", run.ranks(),
                                                                " ranks share a node; set ranks_per_node to ",
                                                                run.ranks(), ", or remove it")});
  }
  return misfits;
}

}  // namespace scalelab
