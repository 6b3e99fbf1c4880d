// Numeric precision of forward passes.
#pragma once

#include <string>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

enum class Precision { kFp32, kAmpBf16 };

// Throws TrainerError for what the device cannot do.
Precision ParsePrecision(const std::string& name, const at::Device& device);

// Forward passes of the calling thread run under automatic mixed precision while this lives (nothing for
// kFp32). The cache of converted weights is emptied at the outermost end, because the optimizer changes the
// weights after it.
class PrecisionScope {
 public:
  explicit PrecisionScope(Precision precision);
  ~PrecisionScope();
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;

 private:
  bool active_, before_ = false;
};

}  // namespace scalelab::trainer
