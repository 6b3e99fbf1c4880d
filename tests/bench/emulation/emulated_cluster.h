// A discrete-event emulation of data-parallel training: ranks that compute, buckets of gradients that are reduced in order over
// rings of links with latency and bandwidth, and noise. No process and no network is involved.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "server/prediction/bucket_replay.h"

namespace scalelab::bench {

// A link transfers n bytes in latency + n * seconds_per_byte.
struct EmulatedLink {
  double latency = 0, seconds_per_byte = 0;
};

struct EmulatedBucket {
  double ready = 0;  // share of backward after which its gradients are complete
  double bytes = 0;
};

// The computation of one recorded step of a rank.
struct EmulatedStep {
  double relative = 1;       // its duration / that of a usual step
  double forward = 1.0 / 3;  // share of the computation before backward
};

// A program on a cluster. The throughput of its runs is drawn by Run.
struct EmulatedConfiguration {
  bool strong = true;
  std::vector<int> measured;  // world sizes
  int target = 0;
  int ranks_per_node = 1;
  double batch = 0;  // over all ranks if strong, else of a rank
  double seconds_per_sample = 0, seconds_per_step = 0;
  double contention = 0;  // slowdown of a rank on a full node, for example by shared memory bandwidth
  std::vector<EmulatedBucket> buckets;
  EmulatedLink within, between;  // nodes
  double jitter = 0;             // deviation of a rank's computation in a step, as a share
  double spread = 0;             // deviation of the speeds of ranks, as a share
  double hiccups = 0;            // share of steps of a rank that take twice as long
  double run_noise = 0, block_noise = 0;
  int repeats = 3;
  std::string noise;  // name of the kind of noise
  // Recorded steps, used by RunMoving: each rank takes them in their order, from a random one on. Empty: the
  // steps of a rank differ by `jitter`.
  std::vector<EmulatedStep> steps;

  double BatchOfRank(int ranks) const { return strong ? batch / ranks : batch; }
};

EmulatedConfiguration DrawConfiguration(std::mt19937_64& random);

struct EmulatedRun {
  double throughput = 0;
  server::MeanStepParts parts;
  // Set only by RunMoving: the exposed communication of each rank, and the buckets that the
  // first rank records.
  std::vector<double> exposed;
  server::RecordedStep recorded;
};

// Emulates a run of some tens of steps. `block` is the factor of its block.
EmulatedRun Run(const EmulatedConfiguration& configuration, int ranks, double block, std::mt19937_64& random);

}  // namespace scalelab::bench
