// Numeric precision of training.
#pragma once

#include <string>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// kTf32: products of single precision with the mantissa of TensorFloat-32, a setting of the device. The last
// two are automatic mixed precision.
enum class Precision { kFp32, kTf32, kAmpBf16, kAmpFp16 };

// Throws TrainerError for what the device cannot do.
Precision ParsePrecision(const std::string& name, const at::Device& device);

// Whether the calling thread is under automatic mixed precision.
bool AutocastEnabled(at::DeviceType device);

// Forward passes of the calling thread run under automatic mixed precision while this lives (nothing for
// kFp32 and kTf32). The cache of converted weights is emptied at the outermost end, because the optimizer
// changes the weights after it.
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
