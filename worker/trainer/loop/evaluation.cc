#include "worker/trainer/loop/evaluation.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "worker/trainer/data/train_loader.h"
#include "worker/trainer/metrics/stopwatch.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

// Limits of a batch in samples, pixels and tokens, so that it needs less memory than a usual training batch.
constexpr int64_t kBatch = 250, kPixels = 1 << 20, kTokens = 1 << 12;
// A batch on a GPU is larger by this factor, because small batches do not keep a GPU busy.
constexpr int64_t kOnGpu = 4;
constexpr int kSlots = 3;  // one batch is in use, one is ready and one is being made

}  // namespace

Evaluation Evaluate(Model& model, const ImageSet& set, Precision precision, at::Device device,
                    at::MemoryFormat format, Communicator& communicator) {
  const Stopwatch watch;
  const at::NoGradGuard no_grad;
  model.eval();
  const int64_t first = set.size * communicator.rank() / communicator.size();
  const int64_t last = set.size * (communicator.rank() + 1) / communicator.size();
  std::vector<int32_t> samples(last - first);
  std::iota(samples.begin(), samples.end(), static_cast<int32_t>(first));

  const int64_t more = device.is_cuda() ? kOnGpu : 1;
  const int64_t fit = set.shape.tokens > 0 ? kTokens / set.shape.tokens : kPixels / set.shape.plane();
  const int64_t batch = std::min(std::clamp<int64_t>(fit * more, 1, kBatch * more), last - first);
  const auto samples_of = [&](int64_t step) -> TrainLoader::Samples {
    const int64_t done = step * batch;
    return {std::span(samples).subspan(done, std::min(batch, last - first - done)), 0};
  };
  std::optional<TrainLoader> loader;
  if (batch > 0) {
    loader.emplace(set, samples_of,
                   TrainLoader::Options{.batch_per_rank = batch,
                                        .total_steps = (last - first + batch - 1) / batch,
                                        .format = format,
                                        .device = device,
                                        .slots = kSlots,
                                        .type = ComputeType(precision)});
  }
  at::Tensor sums = at::zeros({3}, at::TensorOptions(device).dtype(at::kDouble));  // loss, correct, samples
  sums[2].fill_(last - first);
  for (int64_t done = 0, n = 0; done < last - first; done += n) {
    const auto& [images, labels] = loader->Next();
    n = labels.size(0);
    at::Tensor logits;
    {
      const PrecisionScope scope(precision, device.type());
      logits = model.forward(images);
    }
    logits = logits.to(at::kFloat);
    const int64_t labels_of_sample = labels.numel() / n;
    sums[0].add_(at::cross_entropy_loss(logits, labels.flatten(), {}, at::Reduction::Sum) / labels_of_sample);
    sums[1].add_(CountCorrect(logits, labels));
  }
  model.train();

  communicator.AllReduce(sums, ReduceOp::kSum);
  const at::Tensor on_host = sums.cpu();
  const double* s = on_host.data_ptr<double>();
  return {.loss = s[0] / s[2],
          .accuracy = s[1] / s[2],
          .seconds = watch.Seconds(),
          .samples = static_cast<int64_t>(s[2])};
}

at::Tensor MeanLoss(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits, labels.flatten());
}

at::Tensor CountCorrect(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor correct = logits.detach().argmax(1).eq(labels.flatten()).sum();
  if (labels.dim() == 1) return correct;
  return correct.to(at::kDouble) / static_cast<double>(labels.size(1));
}

}  // namespace scalelab::trainer
