#include "worker/trainer/models/dropout.h"

#include <utility>

namespace scalelab::trainer {
namespace {

thread_local const at::Generator* generator_of_thread = nullptr;

}  // namespace

at::Tensor ApplyDropout(const at::Tensor& x, double p, bool training) {
  if (!training || generator_of_thread == nullptr || !x.is_cpu()) return at::dropout(x, p, training);
  // These are the operations of at::dropout on a CPU. at::dropout has no argument for a generator.
  const at::Tensor noise = at::empty_like(x).bernoulli_(1 - p, *generator_of_thread).div_(1 - p);
  return x * noise;
}

DropoutScope::DropoutScope(const at::Generator* generator)
    : before_(std::exchange(generator_of_thread, generator)) {}
DropoutScope::~DropoutScope() { generator_of_thread = before_; }

}  // namespace scalelab::trainer
