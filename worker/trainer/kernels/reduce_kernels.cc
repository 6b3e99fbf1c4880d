#include "worker/trainer/kernels/reduce_kernels.h"

#include <cstdint>

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

// Applies `Op` to each pair of elements, converted to type `Wide`.
template <typename T, typename Wide, typename Op>
void Reduce(void* result, const void* a, const void* b, size_t count) {
  T* out = static_cast<T*>(result);
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<T>(Op()(static_cast<Wide>(x[i]), static_cast<Wide>(y[i])));
  }
}

template <typename Op>
ReduceFunction FunctionFor(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return Reduce<float, float, Op>;
    case c10::ScalarType::Half:
      return Reduce<c10::Half, float, Op>;
    case c10::ScalarType::BFloat16:
      return Reduce<c10::BFloat16, float, Op>;
    case c10::ScalarType::Double:
      return Reduce<double, double, Op>;
    default:
      return Reduce<int64_t, int64_t, Op>;
  }
}

template <typename T, typename Wide>
void DivideAs(void* array, size_t count, double divisor) {
  T* data = static_cast<T*>(array);
  const Wide wide = static_cast<Wide>(divisor);
  for (size_t i = 0; i < count; ++i) data[i] = static_cast<T>(static_cast<Wide>(data[i]) / wide);
}

}  // namespace

ReduceFunction SumFunction(c10::ScalarType type) { return FunctionFor<Sum>(type); }

ReduceFunction MaxFunction(c10::ScalarType type) { return FunctionFor<Max>(type); }

ReduceFunction BitAndFunction() { return Reduce<int64_t, int64_t, BitAnd>; }

void DivideArray(void* data, size_t count, c10::ScalarType type, double divisor) {
  switch (type) {
    case c10::ScalarType::Half:
      return DivideAs<c10::Half, float>(data, count, divisor);
    case c10::ScalarType::BFloat16:
      return DivideAs<c10::BFloat16, float>(data, count, divisor);
    case c10::ScalarType::Double:
      return DivideAs<double, double>(data, count, divisor);
    default:
      return DivideAs<float, float>(data, count, divisor);
  }
}

}  // namespace scalelab::trainer
