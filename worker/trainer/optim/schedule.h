// The learning rate of each step.
#pragma once

#include <cstdint>

#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// Returns the learning rate of `step`, which counts from 0 over the whole run. Epochs are fractional, so the
// rate changes with every step. It grows linearly from warmup_start_rate at step 0 to learning_rate after
// warmup_epochs (gradual warm-up of Goyal et al. 2017, section 2.2, who start at the rate of the reference
// batch), then follows lr_schedule over the run's `epochs`, even if max_steps ends the run earlier. Schedule
// "step" divides the rate by 10 at each of lr_milestones.
double LearningRate(const TrainingSpec& spec, int64_t step, int64_t steps_per_epoch);

}  // namespace scalelab::trainer
