// Which device a rank trains on.
#pragma once

#include <cstdint>

#include "worker/trainer/torch.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// GPUs that this process can use; 0 in a build without CUDA.
int VisibleGpus();

// Field `device`: "auto" is a GPU for backend nccl and where the ranks were given GPUs, if this build knows
// any. A rank takes the GPU of its number on the node among those it sees. Throws TrainerError where there is
// none.
at::Device ChooseDevice(const TrainingSpec& spec, int local_rank);

// Makes it the calling thread's device, and its single precision exact, or TensorFloat-32 where `tf32`.
void PrepareDevice(at::Device device, bool tf32);

// The most that tensors have taken on the device so far; 0 on a CPU.
int64_t PeakDeviceBytes(at::Device device);

}  // namespace scalelab::trainer
