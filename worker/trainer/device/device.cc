#include "worker/trainer/device/device.h"

#include <cstdio>

#include "worker/trainer/errors.h"
#ifdef SCALELAB_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace scalelab::trainer {
namespace {

bool WantsGpu(const TrainingSpec& spec) {
  if (spec.device == "cpu" && spec.backend == "nccl") {
    throw TrainerError("backend \"nccl\" needs GPUs, but device is \"cpu\": use backend mpi or gloo");
  }
  return spec.device == "cuda" || spec.backend == "nccl" || (spec.device == "auto" && spec.gpus_per_rank > 0);
}

// Returns the field that requests a GPU, for error messages.
std::string Wish(const TrainingSpec& spec) {
  return spec.backend == "nccl"  ? "backend \"nccl\""
         : spec.device == "cuda" ? "device \"cuda\""
                                 : "gpus_per_rank " + std::to_string(spec.gpus_per_rank);
}

}  // namespace

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
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % visible));
}

void PrepareDevice(at::Device device, bool tf32) {
  if (!device.is_cuda()) return;
  c10::cuda::set_device(device.index());
  at::globalContext().setAllowTF32CuBLAS(tf32);
  at::globalContext().setAllowTF32CuDNN(tf32);
  at::globalContext().setBenchmarkCuDNN(true);  // pays because shapes do not change
}

int64_t PeakDeviceBytes(at::Device device) {
  if (!device.is_cuda()) return 0;
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak;
}

#else

int VisibleGpus() { return 0; }

at::Device ChooseDevice(const TrainingSpec& spec, int) {
  if (!WantsGpu(spec)) return at::kCPU;
  if (spec.device == "auto" && spec.backend != "nccl") {
    std::fprintf(stderr,
                 "gpus_per_rank is %lld, but this trainer was built without CUDA: training on the CPU\n",
                 static_cast<long long>(spec.gpus_per_rank));
    return at::kCPU;
  }
  throw TrainerError(Wish(spec) +
                     " is not part of this build: build the trainer with preset cuda, or set device to "
                     "\"cpu\" and backend to \"mpi\"");
}

void PrepareDevice(at::Device, bool) {}
int64_t PeakDeviceBytes(at::Device) { return 0; }

#endif

}  // namespace scalelab::trainer
