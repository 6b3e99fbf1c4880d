#include "worker/trainer/evaluation.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "worker/trainer/data/batch.h"
#include "worker/trainer/metrics/stopwatch.h"

namespace scalelab::trainer {
namespace {

constexpr int64_t kBatch = 250;  // its activations stay below those of a usual training batch

}  // namespace

Evaluation Evaluate(Model& model, const ImageSet& set, Precision precision, at::MemoryFormat format,
                    Communicator& communicator) {
  const Stopwatch watch;
  const at::NoGradGuard no_grad;
  model.eval();
  const int64_t first = set.size * communicator.rank() / communicator.size();
  const int64_t last = set.size * (communicator.rank() + 1) / communicator.size();
  std::vector<int32_t> samples(last - first);
  std::iota(samples.begin(), samples.end(), static_cast<int32_t>(first));

  Batch buffer = AllocateBatch(std::min<int64_t>(kBatch, last - first), format);
  double loss = 0;
  int64_t correct = 0;
  for (int64_t done = 0, n = 0; done < last - first; done += n) {
    n = std::min<int64_t>(kBatch, last - first - done);
    FillBatch(set, std::span(samples).subspan(done, n), {}, buffer);
    const at::Tensor labels = buffer.labels.narrow(0, 0, n);
    at::Tensor logits;
    {
      const PrecisionScope scope(precision);
      logits = model.forward(buffer.images.narrow(0, 0, n));
    }
    logits = logits.to(at::kFloat);
    loss += at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum).item<double>();
    correct += CountCorrect(logits, labels);
  }
  model.train();

  at::Tensor sums =
      torch::tensor({loss, static_cast<double>(correct), static_cast<double>(last - first)}, at::kDouble);
  communicator.AllReduce(sums, ReduceOp::kSum);
  const double* s = sums.data_ptr<double>();
  return {.loss = s[0] / s[2],
          .accuracy = s[1] / s[2],
          .seconds = watch.Seconds(),
          .samples = static_cast<int64_t>(s[2])};
}

int64_t CountCorrect(const at::Tensor& logits, const at::Tensor& labels) {
  return logits.detach().argmax(1).eq(labels).sum().item<int64_t>();
}

}  // namespace scalelab::trainer
