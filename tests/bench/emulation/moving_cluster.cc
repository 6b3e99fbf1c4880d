#include "tests/bench/emulation/moving_cluster.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <numeric>

#include "tests/bench/emulation/shaped_links.h"
#include "tests/bench/figure.h"

namespace scalelab::bench {
namespace {

constexpr int kWarmup = 2, kSteps = 12;
constexpr double kBytesOfAFloat = 4096;  // a bucket of n bytes is emulated by n / kBytesOfAFloat numbers

// A coroutine that nobody awaits: it runs to its first wait, and is freed at its end.
struct Detached {
  struct promise_type {
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

// The measurements of one rank in its steps after warm-up.
struct RankTimes {
  std::vector<double> steps;
  double compute = 0, exposed = 0, communication = 0;  // sums
  std::vector<std::vector<double>> ready, reduce;      // of rank 0, by bucket
  std::vector<double> backward;                        // of rank 0
};

class Cluster {
 public:
  Cluster(const EmulatedConfiguration& c, const NetworkNoise& network, int ranks, std::mt19937_64& random,
          double dilation)
      : c_(c), network_(network), ranks_(ranks), clock_(dilation), random_(random), times_(ranks) {
    for (int i = 0; i < ranks; ++i) {
      mailboxes_.push_back(std::make_unique<Mailbox>(clock_));
      own_links_.emplace_back(c.within.seconds_per_byte, network.burst);
    }
    for (int node = 0; node <= (ranks - 1) / c.ranks_per_node; ++node)
      node_links_.emplace_back(c.between.seconds_per_byte, network.burst);
  }

  // `usual`: seconds of computation of a rank with a speed of 1.
  void Run(double usual) {
    for (int rank = 0; rank < ranks_; ++rank) Rank(rank, usual * std::exp(c_.spread * normal_(random_)));
    clock_.Run();
    for (const RankTimes& of_rank : times_) {
      if (of_rank.steps.size() == kSteps) continue;
      std::cerr << "scalelab-bench: a rank of the emulation waits for a message that nobody sends\n";
      std::abort();
    }
  }
  const std::vector<RankTimes>& times() const { return times_; }
  double now() const { return clock_.now(); }

 private:
  // Sends a chunk that represents `bytes` bytes to the next rank of the ring.
  void SendToNext(int rank, double bytes, std::vector<float> chunk) {
    const int to = (rank + 1) % ranks_, node = rank / c_.ranks_per_node;
    const bool between = node != to / c_.ranks_per_node;
    TokenBucket& link = between ? node_links_[node] : own_links_[rank];
    if (between && uniform_(random_) < network_.cross_traffic) link.Pass(clock_.now(), bytes);
    const double sent = link.Pass(clock_.now(), bytes);
    const double latency = between ? c_.between.latency : c_.within.latency;
    const double late = std::exp(network_.message_jitter * normal_(random_));
    mailboxes_[to]->Send(sent + latency * late, std::move(chunk));
  }

  // Returns where part `part` of a ring begins in a bucket of `size` numbers.
  size_t Offset(size_t size, int part) const { return size * static_cast<size_t>(part) / ranks_; }

  // Returns the computation of a step of a rank whose first step is recorded step `first`.
  EmulatedStep StepOf(size_t first, int step) {
    if (c_.steps.empty()) return {.relative = std::exp(c_.jitter * normal_(random_))};
    return c_.steps[(first + static_cast<size_t>(step + kWarmup)) % c_.steps.size()];
  }

  // One rank: computes, and reduces each bucket by a ring of 2 (p - 1) messages when it is ready.
  Detached Rank(int rank, double usual) {
    RankTimes& mine = times_[rank];
    mine.ready.resize(c_.buckets.size());
    mine.reduce.resize(c_.buckets.size());
    size_t first = 0;
    if (!c_.steps.empty()) first = std::uniform_int_distribution<size_t>(0, c_.steps.size() - 1)(random_);
    for (int step = -kWarmup; step < kSteps; ++step) {
      const double begin = clock_.now();
      const double slow = uniform_(random_) < c_.hiccups ? 2 : 1;
      const EmulatedStep of_rank = StepOf(first, step);
      const double compute = usual * slow * of_rank.relative, forward = of_rank.forward;
      double communicated = 0;
      for (size_t i = 0; i < c_.buckets.size(); ++i) {
        const EmulatedBucket& bucket = c_.buckets[i];
        const double ready = begin + compute * (forward + (1 - forward) * bucket.ready);
        co_await clock_.Until(std::max(clock_.now(), ready));
        if (step >= 0) mine.ready[i].push_back(ready - begin - compute * forward);
        if (ranks_ == 1) continue;
        const double started = clock_.now();
        const auto numbers = std::max<size_t>(ranks_, static_cast<size_t>(bucket.bytes / kBytesOfAFloat));
        std::vector<float> gradients(numbers, static_cast<float>(rank + 1));
        for (int message = 0; message < 2 * (ranks_ - 1); ++message) {
          const int out = ((rank - message) % ranks_ + ranks_) % ranks_, in = (out + ranks_ - 1) % ranks_;
          SendToNext(
              rank, bucket.bytes / ranks_,
              {gradients.begin() + Offset(numbers, out), gradients.begin() + Offset(numbers, out + 1)});
          const std::vector<float> received = co_await mailboxes_[rank]->Receive();
          float* at = gradients.data() + Offset(numbers, in);
          const bool adds = message < ranks_ - 1;  // the later messages pass the sums on
          for (size_t k = 0; k < received.size(); ++k) at[k] = adds ? at[k] + received[k] : received[k];
        }
        CheckSums(gradients);
        communicated += clock_.now() - started;
        if (step >= 0) mine.reduce[i].push_back(clock_.now() - started);
      }
      co_await clock_.Until(std::max(clock_.now(), begin + compute));
      if (step < 0) continue;
      mine.steps.push_back(clock_.now() - begin);
      mine.backward.push_back(compute * (1 - forward));
      mine.compute += compute;
      mine.exposed += clock_.now() - begin - compute;
      mine.communication += communicated;
    }
  }

  void CheckSums(const std::vector<float>& gradients) const {
    const int expected = ranks_ * (ranks_ + 1) / 2;
    if (std::ranges::all_of(gradients, [&](float sum) { return sum == static_cast<float>(expected); }))
      return;
    std::cerr << "scalelab-bench: an all-reduce of the emulation has a wrong sum\n";
    std::abort();
  }

  const EmulatedConfiguration& c_;
  const NetworkNoise& network_;
  const int ranks_;
  EmulatedClock clock_;
  std::mt19937_64& random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;  // the messages that each rank receives
  std::vector<TokenBucket> own_links_, node_links_;
  std::vector<RankTimes> times_;
};

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// Returns the number of real seconds for an emulated second. The run then takes `slack` times the processor
// time that it takes in virtual time, and a step takes at least kLeastStep, so that the precision of the
// machine's clock does not matter.
double DilationFor(const EmulatedConfiguration& c, const NetworkNoise& network, int ranks, double usual,
                   std::mt19937_64 random, double slack) {
  constexpr double kLeastStep = 0.005;
  const double begin = CpuSeconds();
  Cluster cluster(c, network, ranks, random, 0);
  cluster.Run(usual);
  const double real = std::max(slack * (CpuSeconds() - begin), kLeastStep * (kWarmup + kSteps));
  return real / cluster.now();
}

}  // namespace

NetworkNoise DrawNetworkNoise(const EmulatedConfiguration& configuration, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform;
  NetworkNoise network;
  network.message_jitter = 0.5 * uniform(random);
  network.cross_traffic = uniform(random) < 0.5 ? 0 : 0.2 * uniform(random);
  double bytes = 0;
  for (const EmulatedBucket& bucket : configuration.buckets) bytes += bucket.bytes;
  network.burst = 0.01 * uniform(random) * bytes;
  return network;
}

EmulatedRun RunMoving(const EmulatedConfiguration& c, const NetworkNoise& network, int ranks, double block,
                      std::mt19937_64& random, double slack) {
  std::normal_distribution<double> normal;
  const int on_node = std::min(ranks, c.ranks_per_node);
  const double crowded =
      c.ranks_per_node == 1 ? 1 : 1 + c.contention * (on_node - 1) / (c.ranks_per_node - 1);
  const double usual = (c.seconds_per_step + c.BatchOfRank(ranks) * c.seconds_per_sample) * crowded * block *
                       std::exp(c.run_noise * normal(random));
  const double dilation = slack > 0 ? DilationFor(c, network, ranks, usual, random, slack) : 0;
  Cluster cluster(c, network, ranks, random, dilation);
  cluster.Run(usual);
  const RankTimes& first = cluster.times().front();
  EmulatedRun run;
  run.throughput = c.BatchOfRank(ranks) * ranks / Median(first.steps);
  double communication = 0;
  for (const RankTimes& of_rank : cluster.times()) {
    run.exposed.push_back(of_rank.exposed / kSteps);
    communication += of_rank.communication / kSteps / ranks;
  }
  const double step = std::accumulate(first.steps.begin(), first.steps.end(), 0.0) / kSteps;
  const double least = *std::ranges::min_element(run.exposed);
  run.parts = {step - least, least, communication, c.BatchOfRank(ranks)};
  run.recorded.backward = Median(first.backward);
  for (size_t i = 0; i < c.buckets.size(); ++i) {
    const double reduce = ranks == 1 ? 0 : *std::ranges::min_element(first.reduce[i]);
    run.recorded.buckets.push_back({c.buckets[i].bytes, Median(first.ready[i]), reduce});
  }
  return run;
}

}  // namespace scalelab::bench
