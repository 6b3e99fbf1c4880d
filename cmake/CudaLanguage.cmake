# Enables CUDA for the trainer's kernels (worker/trainer/kernels/*.cu).
find_package(CUDAToolkit REQUIRED)
if(NOT CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
# Compute capabilities 8.0 (A100) and 9.0 (H100). The driver compiles the PTX of 9.0 for later GPUs.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
# LibTorch uses the shared library too.
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
