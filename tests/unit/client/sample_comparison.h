// Comparisons of two and of three studies, as a server would return them.
#pragma once

#include "scalelab/v1/analysis.pb.h"
#include "tests/unit/client/sample_curve.h"

namespace scalelab::client {

// Two studies. One name needs escaping, and one difference has no interval.
inline scalelab::v1::CompareCellsResponse SampleComparison() {
  scalelab::v1::CompareCellsResponse comparison;
  comparison.set_axis("study");
  comparison.add_studies("studies/8");
  comparison.add_studies("studies/7");
  for (const int ranks : {1, 2, 4}) {
    auto* group = comparison.add_groups();
    group->set_ranks(ranks);
    (*group->mutable_key()->mutable_fields())["engine"].set_string_value("native/ddp");
    auto* pair = group->add_pairs();
    pair->set_first("new & better");
    pair->set_second("old");
    pair->set_first_repeats(5);
    pair->set_second_repeats(4);
    SetEstimate(pair->mutable_first_throughput(), 850 * ranks, 12);
    SetEstimate(pair->mutable_second_throughput(), 812.4 * ranks, 10);
    SetEstimate(pair->mutable_effect(), 0.046, ranks == 4 ? 0.06 : 0.021);
    if (ranks == 2) pair->mutable_effect()->clear_low();
    pair->set_verdict(ranks == 1 ? scalelab::v1::ComparedPair::FASTER
                                 : scalelab::v1::ComparedPair::UNDECIDED);
  }
  comparison.add_notes("the studies differ in learning_rate: 0.1 (new & better), 0.2 (old)");
  return comparison;
}

// The result of a study at one number of ranks.
struct StudyMean {
  const char* study;
  double throughput;
  int repeats;
};

// Adds a pair. `effect` is the ratio of the throughputs - 1: 900 / 750 - 1 = 0.2. `low` and `high` are the ends of
// its interval.
inline void AddPair(const StudyMean& first, const StudyMean& second, double effect, double low, double high,
                    scalelab::v1::ComparedPair::Verdict verdict, scalelab::v1::ComparedGroup* group) {
  auto* pair = group->add_pairs();
  pair->set_first(first.study);
  pair->set_second(second.study);
  pair->set_first_repeats(first.repeats);
  pair->set_second_repeats(second.repeats);
  SetEstimate(pair->mutable_first_throughput(), first.throughput, 0);
  SetEstimate(pair->mutable_second_throughput(), second.throughput, 0);
  SetEstimate(pair->mutable_effect(), effect, 0);
  pair->mutable_effect()->set_low(low);
  pair->mutable_effect()->set_high(high);
  pair->set_verdict(verdict);
}

// Three studies. The first one has no result at 4 ranks.
inline scalelab::v1::CompareCellsResponse SampleComparisonOfThree() {
  scalelab::v1::CompareCellsResponse comparison;
  comparison.set_axis("study");
  for (const char* study : {"studies/8", "studies/7", "studies/6"}) comparison.add_studies(study);
  for (const int ranks : {1, 4}) {
    auto* group = comparison.add_groups();
    group->set_ranks(ranks);
    (*group->mutable_key()->mutable_fields())["engine"].set_string_value("native/ddp");
  }
  const StudyMean ours = {"ours", 900, 5}, base = {"base", 750, 4}, peer = {"peer", 1000, 3};
  AddPair(ours, base, 0.2, 0.153, 0.249, scalelab::v1::ComparedPair::FASTER, comparison.mutable_groups(0));
  AddPair(ours, peer, -0.1, -0.144, -0.054, scalelab::v1::ComparedPair::SLOWER, comparison.mutable_groups(0));
  AddPair(base, peer, -0.25, -0.294, -0.204, scalelab::v1::ComparedPair::SLOWER,
          comparison.mutable_groups(0));
  AddPair({"base", 2000, 4}, {"peer", 2500, 3}, -0.2, -0.407, 0.08, scalelab::v1::ComparedPair::UNDECIDED,
          comparison.mutable_groups(1));
  return comparison;
}

}  // namespace scalelab::client
