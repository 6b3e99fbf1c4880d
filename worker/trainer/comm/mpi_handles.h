// MPI's own types and constants, for the files that call MPI.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

// Throws TrainerError with MPI's own words; `what` names the operation or the function of MPI.
void CheckMpi(int code, const char* what);

// As MPI counts. Throws TrainerError for other memory, or more elements than MPI can count.
int CountForMpi(const at::Tensor& tensor);

// The communicator of a run, with what MPI must be told about float16 and bfloat16, of which it knows
// neither.
struct MpiHandles {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Datatype half = MPI_DATATYPE_NULL;  // two bytes: float16 and bfloat16
  MPI_Op half_sum = MPI_OP_NULL, half_max = MPI_OP_NULL;
  MPI_Op bfloat16_sum = MPI_OP_NULL, bfloat16_max = MPI_OP_NULL;

  // Ranks are numbered by `rank`, whatever order the launcher chose.
  void Create(int rank);
  void Free();
  MPI_Datatype TypeOf(const at::Tensor& tensor) const;
  MPI_Op OpOf(const at::Tensor& tensor, ReduceOp op) const;
};

}  // namespace scalelab::trainer
