// Where a run computes, and which communication library follows from that. The trainer, the worker and the checks of studies
// share these rules.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace scalelab {

// Returns whether a run with these values of its keys computes on GPUs.
inline bool UsesGpus(absl::string_view device, int64_t gpus_per_rank) {
  return device == "cuda" || (device != "cpu" && gpus_per_rank > 0);
}

// An engine has one environment for CPUs and another for GPUs. Where an engine names its environment, the name of the engine is
// followed by this text for the environment for GPUs.
inline constexpr absl::string_view kOnGpus = " on GPUs";

inline std::string EngineOn(absl::string_view engine, bool gpus) {
  return std::string(engine) + std::string(gpus ? kOnGpus : "");
}
// Returns the engine of a name that EngineOn has made.
inline absl::string_view EngineOf(absl::string_view name) {
  return absl::EndsWith(name, kOnGpus) ? name.substr(0, name.size() - kOnGpus.size()) : name;
}

// Returns the cores of a rank where `cpus_per_rank` is not set. A rank with a GPU has threads that start its work, that compute
// gradients, that load batches and that communicate; on one core they delay each other.
inline int DefaultCores(int64_t gpus_per_rank) { return gpus_per_rank > 0 ? 4 : 1; }

// Returns the backend that the native engines use where the key `backend` is `wish`. "auto" is one library for one device, so that
// runs of different engines can be compared: on GPUs it is nccl for every engine.
inline absl::string_view NativeBackend(absl::string_view wish, int64_t ranks, bool gpus) {
  if (!wish.empty() && wish != "auto") return wish;
  return ranks == 1 ? "solo" : gpus ? "nccl" : "mpi";
}

}  // namespace scalelab
