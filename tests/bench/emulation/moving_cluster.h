// An emulation of data-parallel training, in virtual or in real time. Ranks are coroutines that wait for the
// time of their computation and really reduce their gradients: rings of messages over links that are shaped
// by token buckets. The emulation does not use the models of predictions.
#pragma once

#include <random>

#include "tests/bench/emulation/emulated_cluster.h"

namespace scalelab::bench {

// Properties of real networks in addition to those of EmulatedLink.
struct NetworkNoise {
  double message_jitter = 0;  // deviation of a message's latency, as a share
  double burst = 0;           // bytes that a link passes at once
  double cross_traffic = 0;   // share of messages between nodes that wait for one of others
};
NetworkNoise DrawNetworkNoise(const EmulatedConfiguration& configuration, std::mt19937_64& random);

// Runs some tens of steps. Dies if a rank's sums of gradients are wrong. `block` is the factor of its block.
// With `slack` 0, runs in virtual time. Otherwise runs in real time, which includes the work of the ranks
// themselves: moving and adding numbers, and waking up. Emulated seconds are then stretched so that the
// processor is busy for 1 / slack of the time.
EmulatedRun RunMoving(const EmulatedConfiguration& configuration, const NetworkNoise& network, int ranks,
                      double block, std::mt19937_64& random, double slack = 0);

}  // namespace scalelab::bench
