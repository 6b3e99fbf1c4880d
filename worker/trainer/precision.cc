#include "worker/trainer/precision.h"

#include <ATen/autocast_mode.h>
#include <torch/version.h>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// LibTorch 2.4 gave these functions a device argument.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
bool AutocastEnabled() { return at::autocast::is_autocast_enabled(at::kCPU); }
void SetAutocast(bool on) { at::autocast::set_autocast_enabled(at::kCPU, on); }
void SetAutocastBf16() { at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16); }
#else
bool AutocastEnabled() { return at::autocast::is_cpu_enabled(); }
void SetAutocast(bool on) { at::autocast::set_cpu_enabled(on); }
void SetAutocastBf16() { at::autocast::set_autocast_cpu_dtype(at::kBFloat16); }
#endif

}  // namespace

Precision ParsePrecision(const std::string& name, const at::Device& device) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "amp-bf16") return Precision::kAmpBf16;
  if (device.is_cpu() && (name == "amp-fp16" || name == "tf32")) {
    throw TrainerError("precision \"" + name + "\" needs a GPU: on a CPU use fp32 or amp-bf16");
  }
  throw TrainerError("there is no precision \"" + name + "\" on this device: use fp32 or amp-bf16");
}

PrecisionScope::PrecisionScope(Precision precision) : active_(precision != Precision::kFp32) {
  if (!active_) return;
  before_ = AutocastEnabled();
  at::autocast::increment_nesting();
  SetAutocastBf16();
  SetAutocast(true);
}

PrecisionScope::~PrecisionScope() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  SetAutocast(before_);
}

}  // namespace scalelab::trainer
