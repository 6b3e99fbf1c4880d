// Determines whether a run computes on GPUs, and which communication library it uses. The trainer, the worker
// and the checks of studies use these rules.
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

// An engine has one environment for CPUs and another for GPUs. The key of the environment is the name of the
// engine, followed by this text for GPUs.
inline constexpr absl::string_view kOnGpus = " on GPUs";

inline std::string EngineOn(absl::string_view engine, bool gpus) {
  return std::string(engine) + std::string(gpus ? kOnGpus : "");
}
// Returns the engine of a key that EngineOn has returned.
inline absl::string_view EngineOf(absl::string_view name) {
  return absl::EndsWith(name, kOnGpus) ? name.substr(0, name.size() - kOnGpus.size()) : name;
}

// Returns the number of cores of a rank if `cpus_per_rank` is not set. A rank with a GPU has several threads:
// one starts the work of the GPU, and others compute gradients, load batches and communicate. On one core
// they would delay each other.
inline int DefaultCores(int64_t gpus_per_rank) { return gpus_per_rank > 0 ? 4 : 1; }

// Returns the backend of the native engines if the key `backend` is `wish`. "auto" selects the same library
// for all engines on the same device, so that their runs can be compared. On GPUs it selects nccl.
inline absl::string_view NativeBackend(absl::string_view wish, int64_t ranks, bool gpus) {
  if (!wish.empty() && wish != "auto") return wish;
  return ranks == 1 ? "solo" : gpus ? "nccl" : "mpi";
}

}  // namespace scalelab
