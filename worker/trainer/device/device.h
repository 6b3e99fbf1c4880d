// Chooses the device that a rank trains on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/trainer/kernels/gpu.h"
#include "worker/trainer/torch.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// Returns the number of GPUs that this process can use; 0 in a build without CUDA.
int VisibleGpus();

// Returns the device for field `device` of the specification. "auto" means a GPU for backend nccl or if
// gpus_per_rank is set. A rank uses the visible GPU whose index is its local rank. Throws TrainerError if there is no such
// GPU: a run that asks for GPUs never trains on the CPU.
at::Device ChooseDevice(const TrainingSpec& spec, int local_rank);

// Returns the index of the GPU of a rank that sees `visible` GPUs. A rank that sees one GPU uses it, because a launcher may show
// each rank its own. If GPUs may be shared, ranks share the visible ones. Throws TrainerError if there are too few.
int GpuOfRank(int local_rank, int visible);

// Returns whether SCALELAB_SHARED_GPU is 1, which is for tests on machines with few GPUs.
bool GpusMayBeShared();

// Returns the model of a GPU or of the CPU, for example "NVIDIA H100 80GB HBM3".
std::string DeviceName(at::Device device);

// Returns the host name and the identity of a GPU; empty for a CPU.
std::string DeviceIdentity(at::Device device);
// Throws TrainerError that names two ranks whose GPUs have the same identity. `identities` are those of all ranks.
void CheckOneGpuEach(const std::vector<std::string>& identities);

// Returns whether CUBLAS_WORKSPACE_CONFIG has a value with which cuBLAS computes the same bits in each run. A run that sets it asks
// for deterministic algorithms.
bool AsksForDeterminism();

// Returns the calling thread's current stream of a GPU; null for a CPU.
GpuStream CurrentStream(at::Device device);
// Returns whether the trainer's own kernels (kernels/gpu_*.h) are compiled for this GPU: compute capability 8.0 or later. With the
// environment variable SCALELAB_GPU_KERNELS=off it returns false, and LibTorch's operators do their work.
bool ExecutesKernels(at::Device device);

// Makes `device` the calling thread's device. Single-precision operations then use TensorFloat-32 if `tf32`,
// and are exact otherwise. If the run asks for determinism, LibTorch uses deterministic algorithms, and names on standard error those
// operations that have none.
void PrepareDevice(at::Device device, bool tf32);

// Peaks of the memory that LibTorch used on a device, in bytes; 0 on a CPU.
struct DeviceMemory {
  int64_t tensors = 0;   // bytes in tensors, including cuDNN's workspaces
  int64_t reserved = 0;  // bytes that LibTorch has allocated on the device
};
DeviceMemory PeakDeviceMemory(at::Device device);

// Prevents LibTorch from reusing the memory of `tensor` until the work that is now on the calling thread's
// current stream has ended. Call it for a tensor that was allocated on another stream.
void KeepForCurrentStream(const at::Tensor& tensor);

}  // namespace scalelab::trainer
