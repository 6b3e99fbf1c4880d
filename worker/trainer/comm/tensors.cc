#include "worker/trainer/comm/tensors.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {

void CheckTensor(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16 && type != at::kDouble &&
      type != at::kLong && type != at::kInt && type != at::kByte) {
    throw TrainerError(
        std::string("communicators take float, float16, bfloat16, double, int64, int32 and uint8, not ") +
        c10::toString(type));
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    throw TrainerError("communicators take tensors that are one dense block of memory");
  }
}

void CheckReduction(const at::Tensor& tensor, ReduceOp op) {
  CheckTensor(tensor);
  const at::ScalarType type = tensor.scalar_type();
  if (type == at::kInt || type == at::kByte) {
    throw TrainerError(std::string("communicators do not reduce tensors of ") + c10::toString(type));
  }
  const bool integer = type == at::kLong;
  if (op == ReduceOp::kAverage && integer)
    throw TrainerError("an average over ranks needs a floating-point tensor");
  if (op == ReduceOp::kBitAnd && !integer)
    throw TrainerError("a bitwise AND over ranks needs an int64 tensor");
}

void CheckBlocks(const at::Tensor& whole, const at::Tensor& block, int size) {
  CheckTensor(whole);
  CheckTensor(block);
  if (whole.numel() != block.numel() * size || whole.scalar_type() != block.scalar_type()) {
    throw TrainerError("a tensor of " + std::to_string(whole.numel()) + " elements is not " +
                       std::to_string(size) + " blocks of " + std::to_string(block.numel()) +
                       " of the same type, one for each rank");
  }
}

int64_t FirstElementOf(int rank, const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

void CheckUnequalBlocks(const at::Tensor& whole, const at::Tensor& block, const std::vector<int64_t>& counts,
                        const Communicator& communicator) {
  CheckTensor(whole);
  CheckTensor(block);
  const int size = communicator.size();
  if (std::ssize(counts) != size || std::ranges::any_of(counts, [](int64_t count) { return count < 0; })) {
    throw TrainerError("an all-gather of unequal blocks needs a number of elements for each of the " +
                       std::to_string(size) + " ranks");
  }
  const int64_t own = counts[communicator.rank()], all = FirstElementOf(size, counts);
  if (block.numel() != own || whole.numel() != all || whole.scalar_type() != block.scalar_type()) {
    throw TrainerError("a block of " + std::to_string(block.numel()) + " elements and a tensor of " +
                       std::to_string(whole.numel()) + " are not the " + std::to_string(own) +
                       " elements of this rank and the " + std::to_string(all) +
                       " of all ranks, of the same type");
  }
}

void CheckPeer(int peer, const Communicator& communicator) {
  if (peer < 0 || peer >= communicator.size() || peer == communicator.rank()) {
    throw TrainerError("rank " + std::to_string(communicator.rank()) + " of " +
                       std::to_string(communicator.size()) + " cannot exchange tensors with rank " +
                       std::to_string(peer));
  }
}

void CheckReceiveFromAny(const at::Tensor& tensor, const Communicator& communicator) {
  CheckTensor(tensor);
  if (communicator.size() == 1)
    throw TrainerError("a single rank cannot receive a tensor: there is no other rank");
}

ReduceFunction ReduceFunctionFor(at::ScalarType type, ReduceOp op) {
  if (op == ReduceOp::kBitAnd) return BitAndFunction();
  return op == ReduceOp::kMax ? MaxFunction(type) : SumFunction(type);
}

void Divide(const at::Tensor& tensor, double divisor) {
  DivideArray(tensor.data_ptr(), static_cast<size_t>(tensor.numel()), tensor.scalar_type(), divisor);
}

}  // namespace scalelab::trainer
