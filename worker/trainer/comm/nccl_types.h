// NCCL's functions, and its constants for element types and reductions.
#pragma once

#include <nccl.h>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/comm/nccl_handle.h"

namespace scalelab::trainer {

// Returns the functions of the NCCL that this program is linked with.
const NcclFunctions& Nccl();

inline ncclDataType_t NcclTypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kDouble:
      return ncclFloat64;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    case at::kByte:
      return ncclUint8;
    default:
      return ncclFloat32;
  }
}

// Returns NCCL's constant for `op`, which must not be kBitAnd.
inline ncclRedOp_t NcclOpOf(ReduceOp op) {
  return op == ReduceOp::kMax ? ncclMax : op == ReduceOp::kAverage ? ncclAvg : ncclSum;
}

}  // namespace scalelab::trainer
