// MPI types and constants, for the files that call MPI.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

// Throws TrainerError with MPI's error text unless `code` is MPI_SUCCESS. `what` is the name of the operation
// or of the MPI function.
void CheckMpi(int code, const char* what);

// Returns the number of elements as an int for MPI. Throws TrainerError if the tensor is not in host memory,
// or has too many elements for MPI.
int CountForMpi(const at::Tensor& tensor);

// The MPI communicator of a run, and a data type and reductions for float16 and bfloat16, which MPI
// does not have.
struct MpiHandles {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Datatype half = MPI_DATATYPE_NULL;  // two bytes: float16 and bfloat16
  MPI_Op half_sum = MPI_OP_NULL, half_max = MPI_OP_NULL;
  MPI_Op bfloat16_sum = MPI_OP_NULL, bfloat16_max = MPI_OP_NULL;

  // Creates the communicator. Its ranks are ordered by `rank`, even if the launcher uses another order.
  void Create(int rank);
  // Returns handles for the ranks that pass the same `color`, which is not negative. Collective and blocking.
  MpiHandles Split(int color) const;
  void Free();
  MPI_Datatype TypeOf(const at::Tensor& tensor) const;
  MPI_Op OpOf(const at::Tensor& tensor, ReduceOp op) const;
};

}  // namespace scalelab::trainer
