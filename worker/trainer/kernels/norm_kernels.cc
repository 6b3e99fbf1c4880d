#include "worker/trainer/kernels/norm_kernels.h"

#include <algorithm>

// One copy of each function for each generation of vector units. The dynamic loader chooses the copy before a
// sanitizer is initialized, so sanitizer builds have one copy only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SCALELAB_SANITIZED)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

namespace scalelab::trainer {
namespace {

// Depending on the processor, the compiler keeps one value of this type in one or more vector registers.
typedef float Lanes __attribute__((vector_size(4 * kNormLanes), aligned(4), may_alias));

#define AT(pointer, index) (*reinterpret_cast<const Lanes*>((pointer) + (index)))
#define AT_MUTABLE(pointer, index) (*reinterpret_cast<Lanes*>((pointer) + (index)))

// Rows between additions to the double sums: few enough for single precision and for the first-level cache.
constexpr int64_t kTile = 64;

}  // namespace

FOR_EACH_CPU void NormSums(const float* x, int64_t rows, int64_t channels, const float* shift, double* sum,
                           double* sum_squares) {
  for (int64_t first = 0; first < rows; first += kTile) {
    const int64_t last = std::min(rows, first + kTile);
    for (int64_t c = 0; c < channels; c += kNormLanes) {
      const Lanes k = AT(shift, c);
      Lanes s = {}, q = {};
      for (int64_t r = first; r < last; ++r) {
        const Lanes d = AT(x, r * channels + c) - k;
        s += d;
        q += d * d;
      }
      for (int i = 0; i < kNormLanes; ++i) sum[c + i] += static_cast<double>(s[i]);
      for (int i = 0; i < kNormLanes; ++i) sum_squares[c + i] += static_cast<double>(q[i]);
    }
  }
}

FOR_EACH_CPU void NormApply(const float* x, const float* residual, int64_t rows, int64_t channels,
                            const float* mean, const float* scale, const float* bias, bool relu, float* y) {
  const Lanes zero = {};
  for (int64_t first = 0; first < rows; first += kTile) {
    const int64_t last = std::min(rows, first + kTile);
    for (int64_t c = 0; c < channels; c += kNormLanes) {
      const Lanes m = AT(mean, c), g = AT(scale, c), b = AT(bias, c);
      for (int64_t r = first; r < last; ++r) {
        const int64_t i = r * channels + c;
        Lanes z = (AT(x, i) - m) * g + b;
        if (residual != nullptr) z += AT(residual, i);
        if (relu) z = z < zero ? zero : z;  // this order of operands keeps NaN
        AT_MUTABLE(y, i) = z;
      }
    }
  }
}

FOR_EACH_CPU void NormBackwardSums(const float* x, const float* y, const float* dy, int64_t rows,
                                   int64_t channels, const float* mean, double* sum_dz, double* sum_dz_x) {
  const Lanes zero = {};
  for (int64_t first = 0; first < rows; first += kTile) {
    const int64_t last = std::min(rows, first + kTile);
    for (int64_t c = 0; c < channels; c += kNormLanes) {
      const Lanes m = AT(mean, c);
      Lanes s = {}, q = {};
      for (int64_t r = first; r < last; ++r) {
        const int64_t i = r * channels + c;
        Lanes z = AT(dy, i);
        if (y != nullptr) z = AT(y, i) <= zero ? zero : z;
        s += z;
        q += z * (AT(x, i) - m);
      }
      for (int i = 0; i < kNormLanes; ++i) sum_dz[c + i] += static_cast<double>(s[i]);
      for (int i = 0; i < kNormLanes; ++i) sum_dz_x[c + i] += static_cast<double>(q[i]);
    }
  }
}

FOR_EACH_CPU void NormBackwardApply(const float* x, const float* y, const float* dy, int64_t rows,
                                    int64_t channels, const float* mean, const float* a, const float* b,
                                    const float* c, float* dx, float* dz) {
  const Lanes zero = {};
  for (int64_t first = 0; first < rows; first += kTile) {
    const int64_t last = std::min(rows, first + kTile);
    for (int64_t channel = 0; channel < channels; channel += kNormLanes) {
      const Lanes m = AT(mean, channel), va = AT(a, channel), vb = AT(b, channel), vc = AT(c, channel);
      for (int64_t r = first; r < last; ++r) {
        const int64_t i = r * channels + channel;
        Lanes z = AT(dy, i);
        if (y != nullptr) z = AT(y, i) <= zero ? zero : z;
        AT_MUTABLE(dx, i) = va * z + vb * (AT(x, i) - m) + vc;
        if (dz != nullptr) AT_MUTABLE(dz, i) = z;
      }
    }
  }
}

}  // namespace scalelab::trainer
