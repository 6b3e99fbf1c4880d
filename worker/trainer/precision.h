// Numeric precision of training.
#pragma once

#include <string>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// kTf32 multiplies single-precision numbers with the mantissa of TensorFloat-32, a setting of the device.
// kAmpBf16 and kAmpFp16 are automatic mixed precision.
enum class Precision { kFp32, kTf32, kAmpBf16, kAmpFp16 };

// Throws TrainerError for an unknown name and for a precision that the device does not support.
Precision ParsePrecision(const std::string& name, const at::Device& device);

// Returns whether automatic mixed precision is enabled in the calling thread.
bool AutocastEnabled(at::DeviceType device);

// Returns the type in which a convolution computes with this precision: bfloat16, float16 or float32.
at::ScalarType ComputeType(Precision precision);

// Enables automatic mixed precision in the calling thread for the lifetime of the object; does nothing for
// kFp32 and kTf32. The outermost destructor clears the cache of converted weights, because the optimizer
// changes the weights next.
class PrecisionScope {
 public:
  PrecisionScope(Precision precision, at::DeviceType device);
  ~PrecisionScope();
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;

 private:
  const bool active_;
  const at::DeviceType device_;
  bool enabled_before_ = false;
  at::ScalarType type_before_ = at::kBFloat16;
};

}  // namespace scalelab::trainer
