#include "worker/trainer/comm/mpi_handles.h"

#include <climits>
#include <string>

#include "worker/trainer/comm/tensors.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// Reduces elements. Has the signature of MPI_User_function.
template <at::ScalarType kType, ReduceOp kOp>
void ReduceForMpi(void* in, void* result, int* count, MPI_Datatype*) {
  ReduceFunctionFor(kType, kOp)(result, result, in, static_cast<size_t>(*count));
}

}  // namespace

void CheckMpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw TrainerError(std::string("MPI: ") + what + " failed: " + std::string(text, length),
                     ErrorKind::kCommunication);
}

int CountForMpi(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.numel() > INT_MAX) {
    throw TrainerError("backend mpi takes tensors in host memory with less than 2^31 elements");
  }
  return static_cast<int>(tensor.numel());
}

void MpiHandles::Create(int rank) {
  CheckMpi(MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &comm), "MPI_Comm_split");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  CheckMpi(MPI_Type_contiguous(2, MPI_BYTE, &half), "MPI_Type_contiguous");
  CheckMpi(MPI_Type_commit(&half), "MPI_Type_commit");
  constexpr int kCommutes = 1;
  MPI_Op_create(ReduceForMpi<at::kHalf, ReduceOp::kSum>, kCommutes, &half_sum);
  MPI_Op_create(ReduceForMpi<at::kHalf, ReduceOp::kMax>, kCommutes, &half_max);
  MPI_Op_create(ReduceForMpi<at::kBFloat16, ReduceOp::kSum>, kCommutes, &bfloat16_sum);
  MPI_Op_create(ReduceForMpi<at::kBFloat16, ReduceOp::kMax>, kCommutes, &bfloat16_max);
}

MpiHandles MpiHandles::Split(int color) const {
  MpiHandles handles = *this;
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  CheckMpi(MPI_Comm_split(comm, color, rank, &handles.comm), "MPI_Comm_split");
  MPI_Comm_set_errhandler(handles.comm, MPI_ERRORS_RETURN);
  return handles;
}

void MpiHandles::Free() {
  for (MPI_Op* op : {&half_sum, &half_max, &bfloat16_sum, &bfloat16_max}) MPI_Op_free(op);
  MPI_Type_free(&half);
  MPI_Comm_free(&comm);
}

MPI_Datatype MpiHandles::TypeOf(const at::Tensor& tensor) const {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kLong:
      return MPI_INT64_T;
    case at::kInt:
      return MPI_INT32_T;
    case at::kByte:
      return MPI_UINT8_T;
    default:
      return half;
  }
}

MPI_Op MpiHandles::OpOf(const at::Tensor& tensor, ReduceOp op) const {
  const at::ScalarType type = tensor.scalar_type();
  if (type == at::kHalf) return op == ReduceOp::kMax ? half_max : half_sum;
  if (type == at::kBFloat16) return op == ReduceOp::kMax ? bfloat16_max : bfloat16_sum;
  if (op == ReduceOp::kBitAnd) return MPI_BAND;
  return op == ReduceOp::kMax ? MPI_MAX : MPI_SUM;
}

}  // namespace scalelab::trainer
