// Averages buckets of gradients over the ranks, exactly or in a compressed form.
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

  // Must be called before the first bucket of each step.
  virtual void BeginStep() { bytes_ = 0; }
  // Starts to replace `flat` of the bucket by its mean over the ranks, and returns at once. The mean is equal
  // on all ranks, bit for bit, and is in place when Wait of the returned object has returned. All ranks must
  // start the same buckets in the same order, and then wait for them in this order. Elements of `tail` that
  // are above zero on some rank stay above zero.
  virtual std::unique_ptr<Work> Start(const GradientBucket& bucket) = 0;

  // Returns whether the result is the mean of the gradients up to rounding. Then the squared norms of the
  // gradients and of their mean show the noise of the gradients.
  virtual bool only_rounds() const { return false; }
  // Returns the tensors of this rank that the reducer keeps from step to step, such as the parts of gradients
  // that were left out. Must be called between steps.
  virtual NamedTensors State() { return {}; }
  // Restores State, with tensors on `device`. `of_ranks` has one element if the number of ranks has not
  // changed. Otherwise it has one element for each rank that wrote the state, and each rank takes the mean of
  // the parts that were left out. That does not change the mean of the next gradient.
  virtual void LoadState(const std::vector<NamedTensors>& /*of_ranks*/, at::Device /*device*/) {}
  // Returns why steps cannot be recorded into a CUDA graph; "" if they can.
  virtual std::string WhyNotRecorded() const { return ""; }
  // Returns the bytes of the parts of gradients that were left out, which this rank keeps until the next
  // step.
  virtual double ErrorBytes() const { return 0; }
  // Returns ErrorBytes by the formula: the size of those of `parameters` whose gradients are compressed.
  virtual double ErrorBytesByFormula(const std::vector<at::Tensor>& /*parameters*/) const { return 0; }
  virtual void AppendMetrics(std::vector<Metric>&) const {}
  // Returns the number of bytes that were passed to the communicator since BeginStep.
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

// Returns a reducer that averages buckets exactly.
std::unique_ptr<GradientReducer> MakeExactReducer(Communicator& communicator);
// Returns a reducer that averages buckets after rounding them to `type`, float16 or bfloat16.
std::unique_ptr<GradientReducer> MakeCastReducer(Communicator& communicator, at::ScalarType type);

// Options of lossy compression. The part of a gradient that is left out is added to the gradient of the next
// step (error feedback). Parameters of less than two dimensions, and parameters that would not become
// smaller, are averaged exactly. In the first `start_step` steps, all parameters are averaged exactly.
struct CompressionOptions {
  enum class Form { kPowerSgd, kTopK, kOneBit };
  Form form = Form::kPowerSgd;
  int64_t rank = 4;     // with kPowerSgd: number of columns
  double ratio = 0.01;  // with kTopK: share of elements that are sent
  int64_t start_step = 0;
};
std::unique_ptr<GradientReducer> MakeCompressingReducer(Communicator& communicator,
                                                        const CompressionOptions& options);

}  // namespace scalelab::trainer
