// The learning rate of each step.
#pragma once

#include <cstdint>

#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// For `step` counted from 0 over the whole run. Epochs are fractional, so the rate moves with every step:
// linear from warmup_start_rate at step 0 to learning_rate after warmup_epochs (Goyal et al. 2017,
// section 2.2), then as lr_schedule says over the run's `epochs`, also when max_steps ends it earlier.
double LearningRate(const TrainingSpec& spec, int64_t step, int64_t steps_per_epoch);

}  // namespace scalelab::trainer
