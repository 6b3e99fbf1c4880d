// Averages buckets of gradients over the ranks, as they are or in a smaller form.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/named_tensors.h"
#include "worker/trainer/strategies/gradient_buckets.h"

namespace scalelab::trainer {

class GradientReducer {
 public:
  explicit GradientReducer(Communicator& communicator) : communicator_(communicator) {}
  virtual ~GradientReducer() = default;

  // Called before the first bucket of each step.
  virtual void BeginStep() { bytes_ = 0; }
  // Replaces `flat` of the bucket by its mean over the ranks, the same on all ranks, bit for bit. Returns at once; the
  // result is in place when Wait of the returned object has returned. All ranks start the same buckets in the same order,
  // and then wait for them in that order. Elements of `tail` that are above zero on some rank stay above zero.
  virtual std::unique_ptr<Work> Start(const GradientBucket& bucket) = 0;

  // Returns whether the result is the mean, except for rounding to the type of the gradients.
  virtual bool exact() const { return false; }
  // Returns the tensors of this rank that it keeps from step to step: what it left out for the next step. To be called
  // between steps.
  virtual NamedTensors State() { return {}; }
  // Restores State, with tensors on `device`. `of_ranks` has one element if as many ranks continue as wrote the state, else
  // one of each rank that wrote it. Then each rank takes the mean of what they left out, which adds the same to the mean of
  // the next gradient.
  virtual void LoadState(const std::vector<NamedTensors>& /*of_ranks*/, at::Device /*device*/) {}
  // Returns why steps cannot be recorded into a CUDA graph; empty if they can.
  virtual std::string WhyNotRecorded() const { return ""; }
  virtual void AppendMetrics(std::vector<Metric>&) const {}
  // Returns the bytes that were passed to the communicator since BeginStep.
  int64_t bytes() const { return bytes_; }

 protected:
  // Starts an operation of the communicator and counts its bytes.
  std::unique_ptr<Work> StartAverage(const at::Tensor& tensor) {
    bytes_ += static_cast<int64_t>(tensor.nbytes());
    return communicator_.StartAllReduce(tensor, ReduceOp::kAverage);
  }

  Communicator& communicator_;
  int64_t bytes_ = 0;
};

// Averages buckets as they are.
std::unique_ptr<GradientReducer> MakeExactReducer(Communicator& communicator);
// Averages buckets rounded to `type`, float16 or bfloat16.
std::unique_ptr<GradientReducer> MakeCastReducer(Communicator& communicator, at::ScalarType type);

// The forms of gradients that leave something out. What is left out is added to the gradient of the next step (error
// feedback), so that nothing is lost. Parameters of less than two dimensions, and others that would not become smaller, are
// averaged exactly, as are all parameters in the first `start_step` steps.
struct CompressionOptions {
  enum class Form { kPowerSgd, kTopK, kOneBit };
  Form form = Form::kPowerSgd;
  int64_t rank = 4;     // of kPowerSgd
  double ratio = 0.01;  // of kTopK
  int64_t start_step = 0;
};
std::unique_ptr<GradientReducer> MakeCompressingReducer(Communicator& communicator,
                                                        const CompressionOptions& options);

}  // namespace scalelab::trainer
