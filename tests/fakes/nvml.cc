// A stand-in for NVIDIA's management library: GPU i always uses (i + 1) * 100 W.
//
// The environment variable FAKE_NVML has words: "three" (GPUs; else two), "mixed" (models), "hidden" (GPU 0 belongs to another
// job), "throttled", "old" (no energy counter), "mig" (divided into parts), "none" (no driver).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

bool Has(const char* word) {
  const char* words = std::getenv("FAKE_NVML");
  return words != nullptr && std::strstr(words, word) != nullptr;
}

char devices[3];  // the addresses of these bytes are the handles of the devices

long Index(void* device) { return static_cast<char*>(device) - devices; }

}  // namespace

extern "C" {

int nvmlInit_v2() { return Has("none") ? 9 : 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = Has("three") ? 3 : 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index == 0 && Has("hidden")) return 4;
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  std::snprintf(uuid, size, "GPU-%ld0000000-0000", Index(device));
  return 0;
}
int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  std::snprintf(name, size, "Fake GPU %ld", Has("mixed") ? Index(device) : 0);
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* mj) {
  if (Has("old")) return 3;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *mj = (Index(device) + 1) * 100 * (now.tv_sec % 10'000'000 * 1000ull + now.tv_nsec / 1'000'000);
  return 0;
}
int nvmlDeviceGetMigMode(void*, unsigned* mode, unsigned* next) {
  *mode = *next = Has("mig") ? 1 : 0;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* mw) {
  *mw = static_cast<unsigned>(Index(device) + 1) * 100'000;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  rates[0] = 80 + 10 * static_cast<unsigned>(Index(device));
  rates[1] = 50;
  return 0;
}
int nvmlDeviceGetClockInfo(void* device, int, unsigned* mhz) {
  *mhz = 1500 + 100 * static_cast<unsigned>(Index(device));
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = 0x2;  // an application has set the clocks, which does not count as throttling
  if (Has("throttled") && Index(device) == 0) *reasons |= 0x40;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  memory[0] = 80ull << 30;
  memory[2] = static_cast<unsigned long long>(Index(device) + 1) << 30;
  memory[1] = memory[0] - memory[2];
  return 0;
}

}  // extern "C"
