// scalelab-bench-steps DIRECTORY: prints the microseconds that the native trainer needs to measure one step
// and write its event to DIRECTORY: the minimum of several rounds, which excludes the influence of other
// processes. `scalelab-bench events` starts it. It is a separate program because it links LibTorch.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "worker/trainer/loop/evaluation.h"
#include "worker/trainer/metrics/step_log.h"
#include "worker/trainer/metrics/stopwatch.h"
#include "worker/trainer/torch.h"

namespace scalelab::bench {
namespace {

using trainer::StepTimes;

constexpr int kRounds = 20, kSteps = 2000, kBatch = 64, kClasses = 10;

// Computes the values that a step needs only for its metrics, as in worker/trainer/loop/train_step.cc. The
// loss is not among them, because every step computes it.
at::Tensor Numbers(const at::Tensor& loss, const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor correct = trainer::CountCorrect(logits, labels).to(at::kDouble);
  return at::stack({loss.to(at::kDouble), correct});
}

double LeastMicroseconds(const std::string& file) {
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  trainer::EventWriter events(file);
  trainer::RunMeter meter(0, kBatch);
  trainer::StepLog log(events, meter, at::kCPU, 0);
  const at::Tensor loss = at::full({}, 2.302585), logits = at::randn({kBatch, kClasses}),
                   labels = at::randint(kClasses, {kBatch}, at::kLong);
  double least = HUGE_VAL;
  for (int round = 0; round < kRounds; ++round) {
    log.BeginEpoch();
    const trainer::Stopwatch watch;
    for (int step = 0; step < kSteps; ++step) {
      trainer::StepRecord record{
          .epoch = 0, .step = step, .rate = 0.1, .marks = trainer::StepMarks(at::kCPU)};
      for (const auto part : {&StepTimes::data, &StepTimes::forward, &StepTimes::backward,
                              &StepTimes::comm_exposed, &StepTimes::optimizer}) {
        record.marks.Mark(part);
      }
      record.samples = record.global_samples = kBatch;
      record.bytes = 1078888;
      record.numbers = Numbers(loss, logits, labels);
      log.Add(std::move(record));
    }
    least = std::min(least, watch.Seconds() / kSteps);
    log.EndEpoch();
  }
  return 1e6 * least;
}

}  // namespace
}  // namespace scalelab::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "scalelab-bench-steps: the directory to write to is missing\n");
    return 2;
  }
  std::printf("%.3f\n", scalelab::bench::LeastMicroseconds(std::string(argv[1]) + "/native-step-events"));
}
