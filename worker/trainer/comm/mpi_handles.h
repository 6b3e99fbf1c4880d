// MPI types and constants, for the files that call MPI.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

// Throws TrainerError with MPI's error text unless `code` is MPI_SUCCESS; `what` names the operation or
// the MPI function.
void CheckMpi(int code, const char* what);

// Returns the number of elements as MPI takes it. Throws TrainerError for a tensor that is not in host memory
// or has too many elements for MPI.
int CountForMpi(const at::Tensor& tensor);

// MPI's communicator of a run, and the data type and reductions for float16 and bfloat16, which MPI lacks.
struct MpiHandles {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Datatype half = MPI_DATATYPE_NULL;  // two bytes: float16 and bfloat16
  MPI_Op half_sum = MPI_OP_NULL, half_max = MPI_OP_NULL;
  MPI_Op bfloat16_sum = MPI_OP_NULL, bfloat16_max = MPI_OP_NULL;

  // Creates the communicator with ranks numbered by `rank`, even if the launcher chose another order.
  void Create(int rank);
  // Returns handles for the ranks that pass the same `color`, which is not negative. Collective and blocking.
  MpiHandles Split(int color) const;
  void Free();
  MPI_Datatype TypeOf(const at::Tensor& tensor) const;
  MPI_Op OpOf(const at::Tensor& tensor, ReduceOp op) const;
};

}  // namespace scalelab::trainer
