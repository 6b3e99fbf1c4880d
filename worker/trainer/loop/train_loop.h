// A training run, from its specification to the `finish` event.
#pragma once

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// Seeds Torch's generators with (spec.seed, rank). Models draw from them while they train (dropout), so the
// random numbers differ between ranks, and are the same in all trainings with the same seed.
void SeedRank(const TrainingSpec& spec, int rank);

// Trains. All ranks of the communicator call this with the same specification, each with its own device.
// Throws TrainerError and Torch's exceptions. On one rank with one thread, the same specification gives the
// same losses bit for bit.
void Train(const TrainingSpec& spec, at::Device device, Communicator& communicator, EventWriter& events);

}  // namespace scalelab::trainer
