#include "worker/trainer/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "catalog/lr_milestones.h"

namespace scalelab::trainer {

double LearningRate(const TrainingSpec& spec, int64_t step, int64_t steps_per_epoch) {
  const double epoch = static_cast<double>(step) / static_cast<double>(steps_per_epoch);
  const double end = static_cast<double>(spec.epochs);
  if (epoch < spec.warmup_epochs) {
    return spec.warmup_start_rate +
           (spec.learning_rate - spec.warmup_start_rate) * epoch / spec.warmup_epochs;
  }
  if (spec.lr_schedule == "step") {
    std::vector<double> milestones = ParseLrMilestones(spec.lr_milestones).value();
    if (milestones.empty()) milestones = {end / 2, end * 3 / 4};
    double divisor = 1;
    for (double milestone : milestones) divisor *= epoch < milestone ? 1 : 10;
    return spec.learning_rate * (1 / divisor);
  }
  if (spec.lr_schedule == "cosine") {
    const double done =
        std::min(1.0, (epoch - spec.warmup_epochs) / std::max(1e-9, end - spec.warmup_epochs));
    return spec.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  return spec.learning_rate;
}

}  // namespace scalelab::trainer
