// NVIDIA's management library (NVML). It is loaded at run time, because it is optional and most nodes do
// not have it.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace scalelab::worker {

// The readings of a GPU at one time. NaN means that the GPU does not provide the value.
struct GpuReading {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double joules = kUnknown;        // since the driver was loaded
  double utilisation = kUnknown;   // share of the last sampling period in which a kernel ran
  double watts = kUnknown;         // power of the whole board
  double clock_mhz = kUnknown;     // of the multiprocessors
  double throttled = kUnknown;     // 1 if power or heat keeps the clock low, else 0
  double memory_bytes = kUnknown;  // used by all processes
};

// Not thread-safe.
class Nvml {
 public:
  struct Gpu {
    std::string uuid, model;
    bool divided = false;  // into parts (MIG), which have no counters of their own
  };

  // Returns null if there is no such library, or if it finds no driver. `library` is a name or a path, as for dlopen.
  static std::unique_ptr<Nvml> Load(const std::string& library);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // The GPUs that this process may use, in the order of their PCI addresses.
  const std::vector<Gpu>& gpus() const { return gpus_; }
  GpuReading Read(size_t gpu) const;

 private:
  struct Functions;

  explicit Nvml(std::unique_ptr<Functions> functions);

  std::unique_ptr<Functions> functions_;
  std::vector<Gpu> gpus_;
  std::vector<void*> handles_;
};

}  // namespace scalelab::worker
