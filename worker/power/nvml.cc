#include "worker/power/nvml.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace scalelab::worker {
namespace {

// From nvml.h of CUDA, whose binary interface does not change.
using Device = void*;
constexpr int kSuccess = 0;
constexpr int kClockSm = 1;
constexpr unsigned kMigEnabled = 1;
// Reasons for a clock below the one that was requested: power cap, slowdown by hardware, heat (software, hardware), power brake.
constexpr unsigned long long kThrottleReasons = 0x04 | 0x08 | 0x20 | 0x40 | 0x80;

}  // namespace

struct Nvml::Functions {
  struct Utilisation {
    unsigned gpu, memory;
  };
  struct Memory {
    unsigned long long total, free, used;
  };

  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  // An old driver may lack the following functions.
  int (*energy)(Device, unsigned long long*) = nullptr;  // mJ
  int (*power)(Device, unsigned*) = nullptr;             // mW
  int (*utilisation)(Device, Utilisation*) = nullptr;    // percent
  int (*clock)(Device, int, unsigned*) = nullptr;        // MHz
  int (*throttle)(Device, unsigned long long*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*mig)(Device, unsigned*, unsigned*) = nullptr;  // mode at present, and after the next reset

  ~Functions() {
    if (library != nullptr) dlclose(library);
  }
  template <class Function>
  bool Find(const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, symbol));
    return function != nullptr;
  }
  // Returns whether the library has all required functions.
  bool FindAll() {
    Find("nvmlDeviceGetTotalEnergyConsumption", energy);
    Find("nvmlDeviceGetPowerUsage", power);
    Find("nvmlDeviceGetUtilizationRates", utilisation);
    Find("nvmlDeviceGetClockInfo", clock);
    Find("nvmlDeviceGetCurrentClocksThrottleReasons", throttle);
    Find("nvmlDeviceGetMemoryInfo", memory);
    Find("nvmlDeviceGetMigMode", mig);
    return Find("nvmlInit_v2", init) && Find("nvmlShutdown", shutdown) &&
           Find("nvmlDeviceGetCount_v2", count) && Find("nvmlDeviceGetHandleByIndex_v2", handle) &&
           Find("nvmlDeviceGetUUID", uuid) && Find("nvmlDeviceGetName", name);
  }
};

std::unique_ptr<Nvml> Nvml::Load(const std::string& library) {
  auto functions = std::make_unique<Functions>();
  functions->library = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (functions->library == nullptr || !functions->FindAll() || functions->init() != kSuccess) return nullptr;
  return std::unique_ptr<Nvml>(new Nvml(std::move(functions)));
}

Nvml::Nvml(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {
  unsigned count = 0;
  if (functions_->count(&count) != kSuccess) return;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    if (functions_->handle(i, &device) != kSuccess) continue;  // the GPU does not belong to the job
    std::array<char, 96> uuid{}, name{};
    functions_->uuid(device, uuid.data(), uuid.size() - 1);
    functions_->name(device, name.data(), name.size() - 1);
    unsigned mode = 0, next = 0;
    const bool divided =
        functions_->mig && functions_->mig(device, &mode, &next) == kSuccess && mode == kMigEnabled;
    gpus_.push_back({uuid.data(), name.data(), divided});
    handles_.push_back(device);
  }
}

Nvml::~Nvml() { functions_->shutdown(); }

GpuReading Nvml::Read(size_t gpu) const {
  const Device device = handles_[gpu];
  const Functions& has = *functions_;
  GpuReading reading;
  unsigned long long wide = 0;
  unsigned number = 0;
  Functions::Utilisation utilisation{};
  Functions::Memory memory{};
  if (has.energy && has.energy(device, &wide) == kSuccess) reading.joules = static_cast<double>(wide) / 1e3;
  if (has.power && has.power(device, &number) == kSuccess) reading.watts = number / 1e3;
  if (has.utilisation && has.utilisation(device, &utilisation) == kSuccess)
    reading.utilisation = utilisation.gpu / 100.0;
  if (has.clock && has.clock(device, kClockSm, &number) == kSuccess) reading.clock_mhz = number;
  if (has.throttle && has.throttle(device, &wide) == kSuccess)
    reading.throttled = (wide & kThrottleReasons) != 0 ? 1 : 0;
  if (has.memory && has.memory(device, &memory) == kSuccess)
    reading.memory_bytes = static_cast<double>(memory.used);
  return reading;
}

}  // namespace scalelab::worker
