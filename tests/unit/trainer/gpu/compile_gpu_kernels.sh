#!/bin/sh
# Compiles the kernels for GPUs without a GPU: compile_gpu_kernels.sh SOURCE... Exits with 77 if there is no CUDA compiler.
for nvcc in "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
  [ ! -x "$nvcc" ] || break
done
if [ ! -x "$nvcc" ]; then
  echo "skipped: no nvcc in \$CUDA_HOME/bin, on PATH or in /usr/local/cuda/bin"
  exit 77
fi
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
for source in "$@"; do
  "$nvcc" -std=c++17 -O1 -Werror all-warnings -I "$(dirname "$0")/../../../.." -gencode arch=compute_80,code=sm_80 \
    -gencode arch=compute_90,code=sm_90 -c "$source" -o "$folder/kernel.o" || exit 1
done
