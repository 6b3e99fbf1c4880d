// Chooses the device that a rank trains on.
#pragma once

#include <cstdint>

#include "worker/trainer/torch.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// Returns the number of GPUs that this process can use; 0 in a build without CUDA.
int VisibleGpus();

// Returns the device for field `device` of the specification. "auto" means a GPU for backend nccl or if
// gpus_per_rank is set, provided that this build supports GPUs. A rank uses the visible GPU whose index is
// its local rank. Throws TrainerError if there is no GPU.
at::Device ChooseDevice(const TrainingSpec& spec, int local_rank);

// Makes `device` the calling thread's device. Single-precision operations then use TensorFloat-32 if `tf32`,
// and are exact otherwise.
void PrepareDevice(at::Device device, bool tf32);

// Returns the peak memory of tensors on the device in bytes; 0 on a CPU.
int64_t PeakDeviceBytes(at::Device device);

}  // namespace scalelab::trainer
