// An emulation of data-parallel training, in virtual or in real time. Ranks are coroutines that wait for the time of their computation
// and really reduce their gradients: rings of messages over links that are shaped by token buckets. Nothing of it uses the models of
// predictions.
#pragma once

#include <random>

#include "tests/bench/emulation/emulated_cluster.h"

namespace scalelab::bench {

// What a real network adds to EmulatedLink.
struct NetworkNoise {
  double message_jitter = 0;  // deviation of a message's latency, as a share
  double burst = 0;           // bytes that a link passes at once
  double cross_traffic = 0;   // share of messages between nodes that wait for one of others
};
NetworkNoise DrawNetworkNoise(const EmulatedConfiguration& configuration, std::mt19937_64& random);

// Runs some tens of steps. Dies if a rank's sums of gradients are wrong. `block` is the factor of its block.
// `slack` 0: in virtual time. Otherwise in real time, in which what the ranks do themselves counts: moving and adding numbers, and
// waking up. Emulated seconds are then as much longer than real ones as is needed for the processor to be busy for 1 / slack of the time.
EmulatedRun RunMoving(const EmulatedConfiguration& configuration, const NetworkNoise& network, int ranks,
                      double block, std::mt19937_64& random, double slack = 0);

}  // namespace scalelab::bench
