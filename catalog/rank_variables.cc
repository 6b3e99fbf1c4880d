#include "catalog/rank_variables.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "catalog/engines.h"

namespace scalelab {
namespace {

std::vector<EngineVariable> MakeEngineVariables() {
  const Engine::Names clusters = {"tensorflow/multiworker-mirrored", "keras/tensorflow"};
  const Engine::Names keras = {"keras/tensorflow", "keras/jax", "keras/pytorch"};
  const Engine::Names jax = {"keras/jax"}, torch = {"keras/pytorch"}, mxnet = {"mxnet/kvstore"};
  const Engine::Names custom = {"custom"};
  Engine::Names adapters;
  for (const Engine& engine : Engines()) {
    if (engine.program == Engine::Program::kAdapter) adapters.push_back(engine.name);
  }
  constexpr absl::string_view kRanks = "set ranks and resources.ranks_per_node";
  constexpr absl::string_view kNetwork = "choose the network interface with env.GLOO_SOCKET_IFNAME";
  constexpr absl::string_view kPort = "let scalelab choose the port";
  constexpr absl::string_view kTorchrun = "torchrun";
  return {
      {"env.TF_CONFIG", clusters, kRanks, ""},
      {"env.KERAS_BACKEND", keras, "choose engine keras/tensorflow, keras/jax or keras/pytorch", ""},
      {"env.KERAS_TORCH_DEVICE", torch, "set device", ""},
      {"env.JAX_PLATFORMS", jax, "set device", ""},
      {"env.JAX_DEFAULT_MATMUL_PRECISION", jax, "set precision", ""},
      {"env.JAX_CPU_COLLECTIVES_IMPLEMENTATION", jax, "set backend", ""},
      {"env.JAX_COORDINATOR_ADDRESS", jax, kNetwork, ""},
      {"env.DMLC_ROLE", mxnet, kRanks, ""},
      {"env.DMLC_NUM_WORKER", mxnet, kRanks, ""},
      {"env.DMLC_NUM_SERVER", mxnet, "use engine native/parameter-server with server_ranks", ""},
      {"env.DMLC_PS_ROOT_URI", mxnet, kNetwork, ""},
      {"env.DMLC_PS_ROOT_PORT", mxnet, kPort, ""},
      {"env.DMLC_NODE_HOST", mxnet, kNetwork, ""},
      {"env.DMLC_INTERFACE", mxnet, kNetwork, ""},
      {"env.PYTHONNOUSERSITE", adapters, "install packages into the environment of the engine", ""},
      // The options that worker/launcher.cc passes to torchrun replace these variables.
      {"env.PET_NNODES", custom, kRanks, kTorchrun},
      {"env.PET_NPROC_PER_NODE", custom, kRanks, kTorchrun},
      {"env.PET_NODE_RANK", custom, kRanks, kTorchrun},
      {"env.PET_MASTER_ADDR", custom, "let scalelab choose the address", kTorchrun},
      {"env.PET_MASTER_PORT", custom, kPort, kTorchrun},
      {"env.PET_MAX_RESTARTS", custom, "set retry.max", kTorchrun},
      {"env.PET_NO_PYTHON", custom, "name the interpreter in command", kTorchrun},
  };
}

std::vector<ThreadVariable> MakeThreadVariables() {
  Engine::Names custom, trainer, others, tensorflow, set_threads, keep_threads;
  for (const Engine& engine : Engines()) {
    const bool command = engine.program == Engine::Program::kCommand;
    const bool native = engine.program == Engine::Program::kTrainer;
    // The adapters of MXNet keep the values of the study.
    const bool keeps = command || engine.environment == "mxnet";
    (keeps ? keep_threads : set_threads).push_back(engine.name);
    (native ? trainer : others).push_back(engine.name);
    if (command) custom.push_back(engine.name);
    if (absl::EndsWith(engine.environment, "tensorflow")) tensorflow.push_back(engine.name);
  }
  return {
      {"env.OMP_NUM_THREADS", set_threads, keep_threads}, {"env.MKL_NUM_THREADS", set_threads, keep_threads},
      {"env.OPENBLAS_NUM_THREADS", trainer, others},      {"env.TF_NUM_INTRAOP_THREADS", tensorflow, custom},
      {"env.TF_NUM_INTEROP_THREADS", tensorflow, custom},
  };
}

}  // namespace

bool IsRankVariable(absl::string_view name) {
  // The variables that torchrun sets.
  constexpr absl::string_view kNames[] = {"RANK",
                                          "LOCAL_RANK",
                                          "WORLD_SIZE",
                                          "LOCAL_WORLD_SIZE",
                                          "GROUP_RANK",
                                          "GROUP_WORLD_SIZE",
                                          "ROLE_RANK",
                                          "ROLE_WORLD_SIZE",
                                          "ROLE_NAME",
                                          "MASTER_ADDR",
                                          "MASTER_PORT",
                                          "TORCHELASTIC_RUN_ID",
                                          "TORCHELASTIC_RESTART_COUNT",
                                          "TORCHELASTIC_MAX_RESTARTS",
                                          "TORCHELASTIC_USE_AGENT_STORE"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool IsReservedVariable(absl::string_view name) {
  return IsRankVariable(name) || absl::StartsWith(name, "SCALELAB_") || name == "SLURM_HOSTFILE";
}

const std::vector<EngineVariable>& EngineVariables() {
  static const auto& variables = *new std::vector<EngineVariable>(MakeEngineVariables());
  return variables;
}

const std::vector<ThreadVariable>& ThreadVariables() {
  static const auto& variables = *new std::vector<ThreadVariable>(MakeThreadVariables());
  return variables;
}

}  // namespace scalelab
