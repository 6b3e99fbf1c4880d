#include "worker/trainer/comm/tensors.h"

#include <string>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};
struct BitAnd {
  int64_t operator()(int64_t a, int64_t b) const { return a & b; }
};

// `Wide` is what T is computed in.
template <typename T, typename Wide, typename Op>
void Reduce(void* result, const void* a, const void* b, size_t count) {
  T* out = static_cast<T*>(result);
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<T>(Op()(static_cast<Wide>(x[i]), static_cast<Wide>(y[i])));
  }
}

template <typename T, typename Wide>
ReduceFunction FunctionFor(ReduceOp op) {
  return op == ReduceOp::kMax ? Reduce<T, Wide, Max> : Reduce<T, Wide, Sum>;
}

template <typename T, typename Wide>
void ScaleAs(const at::Tensor& tensor, double factor) {
  T* data = static_cast<T*>(tensor.data_ptr());
  const Wide wide = static_cast<Wide>(factor);
  for (int64_t i = 0, n = tensor.numel(); i < n; ++i) {
    data[i] = static_cast<T>(static_cast<Wide>(data[i]) * wide);
  }
}

}  // namespace

void CheckTensor(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16 && type != at::kDouble &&
      type != at::kLong) {
    throw TrainerError(std::string("communicators take float, float16, bfloat16, double and int64, not ") +
                       c10::toString(type));
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    throw TrainerError("communicators take tensors that are one dense block of memory");
  }
}

void CheckReduction(const at::Tensor& tensor, ReduceOp op) {
  CheckTensor(tensor);
  const bool integer = tensor.scalar_type() == at::kLong;
  if (op == ReduceOp::kAverage && integer) throw TrainerError("integers have no average over ranks");
  if (op == ReduceOp::kBitAnd && !integer) throw TrainerError("only int64 has a bitwise and over ranks");
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

void CheckPeer(int peer, const Communicator& communicator) {
  if (peer < 0 || peer >= communicator.size() || peer == communicator.rank()) {
    throw TrainerError("rank " + std::to_string(communicator.rank()) + " of " +
                       std::to_string(communicator.size()) + " cannot exchange tensors with rank " +
                       std::to_string(peer));
  }
}

ReduceFunction ReduceFunctionFor(at::ScalarType type, ReduceOp op) {
  if (op == ReduceOp::kBitAnd) return Reduce<int64_t, int64_t, BitAnd>;
  if (type == at::kFloat) return FunctionFor<float, float>(op);
  if (type == at::kHalf) return FunctionFor<at::Half, float>(op);
  if (type == at::kBFloat16) return FunctionFor<at::BFloat16, float>(op);
  if (type == at::kDouble) return FunctionFor<double, double>(op);
  return FunctionFor<int64_t, int64_t>(op);
}

void Scale(const at::Tensor& tensor, double factor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return ScaleAs<at::Half, float>(tensor, factor);
    case at::kBFloat16:
      return ScaleAs<at::BFloat16, float>(tensor, factor);
    case at::kDouble:
      return ScaleAs<double, double>(tensor, factor);
    default:
      return ScaleAs<float, float>(tensor, factor);
  }
}

}  // namespace scalelab::trainer
