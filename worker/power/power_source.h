// Reads the devices of an attempt: its GPUs, or the CPU packages of the node.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/power/cpu_energy.h"
#include "worker/power/nvml.h"
#include "worker/power/power_history.h"

namespace scalelab::worker {

// The sources of the figures. Tests replace them.
struct PowerPlaces {
  std::string nvml = "libnvidia-ml.so.1";
  std::string powercap = "/sys/class/powercap";
};

// The devices that an attempt uses on this node.
struct PowerDevices {
  int gpus = 0;                        // the first that CUDA shows to the ranks; 0: the attempt uses CPUs
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES of the ranks, if it is set
};

// Returns the indexes of the first `devices.gpus` GPUs that CUDA shows; nothing if they cannot be determined
// from `gpus`, because no figure is better than the figure of another GPU.
std::optional<std::vector<size_t>> SelectGpus(const std::vector<Nvml::Gpu>& gpus,
                                              const PowerDevices& devices);

// Not thread-safe.
class PowerSource {
 public:
  explicit PowerSource(PowerPlaces places) : places_(std::move(places)) {}

  // Selects the devices of the following readings. May load NVML, which can take seconds. Returns whether
  // there is a device to read.
  bool Select(const PowerDevices& devices);
  // Returns the present readings of the devices.
  PowerReading Read(double time);

 private:
  const PowerPlaces places_;
  std::unique_ptr<Nvml> nvml_;
  std::optional<CpuEnergy> cpus_;  // selected if it has a value
  std::vector<size_t> gpus_;       // selected
};

}  // namespace scalelab::worker
