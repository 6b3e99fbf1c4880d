#include "worker/trainer/precision.h"

#include <ATen/autocast_mode.h>

#include "worker/trainer/compat.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// LibTorch 2.4 added a device argument to these functions. With earlier versions only the CPU
// is supported here.
#if SCALELAB_TORCH_AT_LEAST(2, 4)
void SetAutocast(at::DeviceType device, bool on) { at::autocast::set_autocast_enabled(device, on); }
at::ScalarType AutocastType(at::DeviceType device) { return at::autocast::get_autocast_dtype(device); }
void SetAutocastType(at::DeviceType device, at::ScalarType type) {
  at::autocast::set_autocast_dtype(device, type);
}
#else
void SetAutocast(at::DeviceType, bool on) { at::autocast::set_cpu_enabled(on); }
at::ScalarType AutocastType(at::DeviceType) { return at::autocast::get_autocast_cpu_dtype(); }
void SetAutocastType(at::DeviceType, at::ScalarType type) { at::autocast::set_autocast_cpu_dtype(type); }
#endif

}  // namespace

#if SCALELAB_TORCH_AT_LEAST(2, 4)
bool AutocastEnabled(at::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
#else
bool AutocastEnabled(at::DeviceType) { return at::autocast::is_cpu_enabled(); }
#endif

Precision ParsePrecision(const std::string& name, const at::Device& device) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "amp-bf16") return Precision::kAmpBf16;
  if (name != "amp-fp16" && name != "tf32") {
    throw TrainerError("unknown precision \"" + name + "\": use fp32, tf32, amp-bf16 or amp-fp16");
  }
  if (device.is_cpu()) {
    throw TrainerError("precision \"" + name + "\" needs a GPU: on a CPU use fp32 or amp-bf16");
  }
  return name == "tf32" ? Precision::kTf32 : Precision::kAmpFp16;
}

at::ScalarType ComputeType(Precision precision) {
  return precision == Precision::kAmpFp16   ? at::kHalf
         : precision == Precision::kAmpBf16 ? at::kBFloat16
                                            : at::kFloat;
}

PrecisionScope::PrecisionScope(Precision precision, at::DeviceType device)
    : active_(ComputeType(precision) != at::kFloat), device_(device) {
  if (!active_) return;
  enabled_before_ = AutocastEnabled(device);
  type_before_ = AutocastType(device);
  at::autocast::increment_nesting();
  SetAutocastType(device, ComputeType(precision));
  SetAutocast(device, true);
}

PrecisionScope::~PrecisionScope() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  SetAutocast(device_, enabled_before_);
  SetAutocastType(device_, type_before_);
}

}  // namespace scalelab::trainer
