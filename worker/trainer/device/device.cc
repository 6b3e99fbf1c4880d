#include "worker/trainer/device/device.h"

#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>

#include "catalog/device.h"
#include "worker/trainer/errors.h"
#ifdef SCALELAB_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

namespace scalelab::trainer {
namespace {

bool WantsGpu(const TrainingSpec& spec) {
  if (spec.device == "cpu" && spec.backend == "nccl") {
    throw TrainerError("backend \"nccl\" needs GPUs, but device is \"cpu\": use backend mpi or gloo");
  }
  return UsesGpus(spec.device, spec.gpus_per_rank) || spec.backend == "nccl";
}

// Returns the field that requests a GPU, for error messages.
std::string Wish(const TrainingSpec& spec) {
  return spec.backend == "nccl"  ? "backend \"nccl\""
         : spec.device == "cuda" ? "device \"cuda\""
                                 : "gpus_per_rank " + std::to_string(spec.gpus_per_rank);
}

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos && colon + 2 < line.size())
      return line.substr(colon + 2);
  }
  utsname name{};  // processors without a model name there
  return uname(&name) == 0 ? name.machine : "CPU";
}

}  // namespace

bool GpusMayBeShared() { return Variable("SCALELAB_SHARED_GPU") == "1"; }

bool AsksForDeterminism() {
  const std::string_view workspace = Variable("CUBLAS_WORKSPACE_CONFIG");
  return workspace == ":4096:8" || workspace == ":16:8";
}

int GpuOfRank(int local_rank, int visible) {
  if (local_rank < visible) return local_rank;
  if (visible == 1) return 0;
  if (visible > 0 && GpusMayBeShared()) return local_rank % visible;
  throw TrainerError(
      "local rank " + std::to_string(local_rank) + " has no GPU of its own, because this process sees " +
      std::to_string(visible) +
      " GPUs: use fewer ranks on a node (resources.ranks_per_node), or check CUDA_VISIBLE_DEVICES");
}

void CheckOneGpuEach(const std::vector<std::string>& identities) {
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    for (size_t other = rank + 1; other < identities.size(); ++other) {
      if (identities[rank].empty() || identities[rank] != identities[other]) continue;
      throw TrainerError(
          "ranks " + std::to_string(rank) + " and " + std::to_string(other) + " on " +
              identities[rank].substr(0, identities[rank].find(' ')) +
              " would share one GPU, and a run needs one for each rank: use fewer ranks on a node "
              "(resources.ranks_per_node), or check that each rank has its own LOCAL_RANK",
          ErrorKind::kCommunication);
    }
  }
}

#ifdef SCALELAB_CUDA

int VisibleGpus() { return c10::cuda::device_count(); }

at::Device ChooseDevice(const TrainingSpec& spec, int local_rank) {
  if (!WantsGpu(spec)) return at::kCPU;
  const int visible = VisibleGpus();
  if (visible == 0) {
    throw TrainerError(Wish(spec) +
                       " needs a GPU, and this process sees none: check the driver (nvidia-smi), "
                       "CUDA_VISIBLE_DEVICES and resources.gpus_per_rank, or set device to \"cpu\"");
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(GpuOfRank(local_rank, visible)));
}

std::string DeviceName(at::Device device) {
  if (!device.is_cuda()) return CpuName();
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  return properties.name;
}

std::string DeviceIdentity(at::Device device) {
  if (!device.is_cuda()) return "";
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  utsname host{};
  uname(&host);
  std::string identity = std::string(host.nodename) + " ";
  for (unsigned char byte : properties.uuid.bytes) {
    identity += "0123456789abcdef"[byte >> 4];
    identity += "0123456789abcdef"[byte & 15];
  }
  return identity;
}

GpuStream CurrentStream(at::Device device) {
  return device.is_cuda() ? c10::cuda::getCurrentCUDAStream(device.index()).stream() : nullptr;
}

bool ExecutesKernels(at::Device device) {
  if (!device.is_cuda() || Variable("SCALELAB_GPU_KERNELS") == "off") return false;
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
  return major >= 8;
}

void PrepareDevice(at::Device device, bool tf32) {
  if (!device.is_cuda()) return;
  c10::cuda::set_device(device.index());
  at::globalContext().setAllowTF32CuBLAS(tf32);
  at::globalContext().setAllowTF32CuDNN(tf32);
  const bool deterministic = AsksForDeterminism();
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/true);
  at::globalContext().setDeterministicCuDNN(deterministic);
  at::globalContext().setBenchmarkCuDNN(!deterministic);  // pays because shapes do not change
}

DeviceMemory PeakDeviceMemory(at::Device device) {
  if (!device.is_cuda()) return {};
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return {.tensors = stats.allocated_bytes[0].peak, .reserved = stats.reserved_bytes[0].peak};
}

void KeepForCurrentStream(const at::Tensor& tensor) {
  if (tensor.is_cuda()) tensor.record_stream(c10::cuda::getCurrentCUDAStream(tensor.device().index()));
}

#else

int VisibleGpus() { return 0; }

at::Device ChooseDevice(const TrainingSpec& spec, int) {
  if (!WantsGpu(spec)) return at::kCPU;
  throw TrainerError(
      Wish(spec) +
      " needs a GPU, and GPUs are not part of this build: build the trainer with preset cuda, or set "
      "device to \"cpu\"" +
      (spec.backend == "nccl" ? " and backend to \"mpi\"" : ""));
}

std::string DeviceName(at::Device) { return CpuName(); }
std::string DeviceIdentity(at::Device) { return ""; }
void PrepareDevice(at::Device, bool) {}
GpuStream CurrentStream(at::Device) { return nullptr; }
bool ExecutesKernels(at::Device) { return false; }
DeviceMemory PeakDeviceMemory(at::Device) { return {}; }
void KeepForCurrentStream(const at::Tensor&) {}

#endif

}  // namespace scalelab::trainer
