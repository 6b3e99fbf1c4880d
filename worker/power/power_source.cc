#include "worker/power/power_source.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace scalelab::worker {
namespace {

// Returns the index of the GPU that an entry of CUDA_VISIBLE_DEVICES names: "1", "GPU-8932f937-..." or the beginning of a UUID.
std::optional<size_t> IndexOf(absl::string_view entry, const std::vector<Nvml::Gpu>& gpus) {
  size_t index = 0;
  if (absl::SimpleAtoi(entry, &index)) return index < gpus.size() ? std::optional(index) : std::nullopt;
  if (!absl::StartsWith(entry, "GPU-"))
    return std::nullopt;  // a part of a GPU (MIG) has no counter of its own
  const auto found =
      std::ranges::find_if(gpus, [&](const Nvml::Gpu& gpu) { return absl::StartsWith(gpu.uuid, entry); });
  return found == gpus.end() ? std::nullopt : std::optional<size_t>(found - gpus.begin());
}

bool OneModel(const std::vector<Nvml::Gpu>& gpus) {
  return std::ranges::all_of(gpus, [&](const Nvml::Gpu& gpu) { return gpu.model == gpus.front().model; });
}

}  // namespace

std::optional<std::vector<size_t>> SelectGpus(const std::vector<Nvml::Gpu>& gpus,
                                              const PowerDevices& devices) {
  const auto wanted = static_cast<size_t>(devices.gpus);
  std::vector<size_t> selected;
  bool by_uuid = devices.visible.has_value();
  if (devices.visible) {
    for (const absl::string_view entry : absl::StrSplit(*devices.visible, ',', absl::SkipEmpty())) {
      const std::optional<size_t> index = IndexOf(entry, gpus);
      if (!index || gpus[*index].divided) return std::nullopt;
      by_uuid = by_uuid && absl::StartsWith(entry, "GPU-");
      selected.push_back(*index);
    }
  } else {
    for (size_t i = 0; i < gpus.size(); ++i) selected.push_back(i);
  }
  if (selected.size() < wanted) return std::nullopt;
  // CUDA numbers the parts of divided GPUs.
  if (!by_uuid && std::ranges::any_of(gpus, [](const Nvml::Gpu& gpu) { return gpu.divided; }))
    return std::nullopt;
  // CUDA numbers the fastest GPUs first, NVML numbers them by their PCI addresses. These are equal with GPUs of one model.
  // The order of the whole set does not matter.
  const bool clear = selected.size() == wanted && (by_uuid || wanted == gpus.size());
  if (!OneModel(gpus) && !clear) return std::nullopt;
  selected.resize(wanted);
  return selected;
}

bool PowerSource::Select(const PowerDevices& devices) {
  cpus_.reset();
  gpus_.clear();
  if (devices.gpus == 0) {
    cpus_.emplace(places_.powercap);
    return !std::isnan(cpus_->Joules());
  }
  if (nvml_ == nullptr) nvml_ = Nvml::Load(places_.nvml);
  if (nvml_ != nullptr) gpus_ = SelectGpus(nvml_->gpus(), devices).value_or(std::vector<size_t>());
  return !gpus_.empty();
}

PowerReading PowerSource::Read(double time) {
  PowerReading reading{.time = time};
  if (cpus_) reading.values[kJoules] = cpus_->Joules();
  if (gpus_.empty()) return reading;
  reading.values.fill(0);
  reading.memory_bytes = 0;
  const auto count = static_cast<double>(gpus_.size());
  for (const size_t gpu : gpus_) {
    const GpuReading one = nvml_->Read(gpu);
    reading.values[kJoules] += one.joules;
    reading.values[kUtilisation] += one.utilisation / count;
    reading.values[kWatts] += one.watts / count;
    reading.values[kClockMhz] += one.clock_mhz / count;
    reading.values[kThrottled] += one.throttled / count;
    // NaN is not below any number, so it remains NaN.
    if (!(one.memory_bytes <= reading.memory_bytes) && !std::isnan(reading.memory_bytes))
      reading.memory_bytes = one.memory_bytes;
  }
  return reading;
}

}  // namespace scalelab::worker
