// One training run, from the specification to the `finish` event.
#pragma once

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// Seeds Torch's generators with (spec.seed, rank), from where models draw while they train (dropout): other
// numbers on each rank, the same ones in each repetition.
void SeedRank(const TrainingSpec& spec, int rank);

// All ranks of the communicator call this with the same specification, each with its own device. Throws
// TrainerError or what Torch throws; the same specification gives the same losses bit for bit on one rank
// with one thread.
void Train(const TrainingSpec& spec, at::Device device, Communicator& communicator, EventWriter& events);

}  // namespace scalelab::trainer
