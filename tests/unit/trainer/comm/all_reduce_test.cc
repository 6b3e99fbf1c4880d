// All-reduces that consist of messages between ranks. Ranks are threads; each test chooses the nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/fakes/thread_communicator.h"
#include "worker/trainer/comm/hierarchical_all_reduce.h"
#include "worker/trainer/comm/recursive_doubling.h"
#include "worker/trainer/comm/ring_schedule.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using testing::ElementsAre;

const at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kLong, at::kHalf, at::kBFloat16};
// Sizes: no elements, fewer elements than ranks, not divisible by the number of ranks, several
// parts per block.
constexpr int64_t kSizes[] = {0, 1, 2, 3, 7, 1000, 700'001};

Ring Everybody(int ranks) {
  Ring ring(ranks);
  std::iota(ring.begin(), ring.end(), 0);
  return ring;
}

// Whole numbers that even bfloat16 adds exactly.
at::Tensor Whole(int64_t size, int rank, at::ScalarType type) {
  return (at::arange(size).remainder(20) + rank).to(type);
}

// Numbers whose sum depends on the order of additions.
at::Tensor Uneven(int64_t size, int rank) {
  return (at::arange(size, at::kDouble) * 0.37 + 1.7 * rank).sin().exp().to(at::kFloat);
}

using AllReduceFunction = std::function<void(Communicator&, const at::Tensor&, ReduceOp)>;

void CheckOnAllRanks(int ranks, const AllReduceFunction& all_reduce) {
  std::vector<at::Tensor> uneven(ranks);
  OnRanks(ranks, [&](ThreadCommunicator& c) {
    for (const int64_t size : kSizes) {
      for (const at::ScalarType type : kTypes) {
        const at::Tensor sum = Whole(size, c.rank(), type);
        all_reduce(c, sum, ReduceOp::kSum);
        const at::Tensor expected = at::arange(size).remainder(20) * ranks + ranks * (ranks - 1) / 2;
        EXPECT_TRUE(sum.equal(expected.to(type))) << c10::toString(type) << " " << size;
        if (type == at::kLong) continue;
        const at::Tensor average = at::full({size}, 1 + c.rank(), type);
        all_reduce(c, average, ReduceOp::kAverage);
        EXPECT_TRUE(at::allclose(average, at::full({size}, (ranks + 1) / 2.0, type), 1e-2))
            << c10::toString(type) << " " << size;
      }
    }
    uneven[c.rank()] = Uneven(10'007, c.rank());
    all_reduce(c, uneven[c.rank()], ReduceOp::kAverage);
  });
  at::Tensor expected = at::zeros({10'007});
  for (int r = 0; r < ranks; ++r) expected += Uneven(10'007, r) / ranks;
  EXPECT_TRUE(at::allclose(uneven[0], expected, 1e-5));
  for (const at::Tensor& other : uneven) EXPECT_TRUE(other.equal(uneven[0])) << "the same bits on all ranks";
}

TEST(RingAllReduce, AddsAndAveragesOnAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    CheckOnAllRanks(ranks, [&](Communicator& c, const at::Tensor& tensor, ReduceOp op) {
      RingAllReduce(c, tensor, op, Everybody(ranks));
    });
  }
}

TEST(RingAllReduce, DoesNotInvolveRanksOutsideTheRing) {
  const Ring odd = {3, 1}, even = {4, 0, 2};
  OnRanks(6, [&](ThreadCommunicator& c) {
    if (c.rank() == 5) return;
    const at::Tensor tensor = at::full({1001}, 1 << c.rank(), at::kLong);
    RingAllReduce(c, tensor, ReduceOp::kSum, c.rank() % 2 == 0 ? even : odd);
    const int64_t sum = c.rank() % 2 == 0 ? 1 + 4 + 16 : 2 + 8;
    EXPECT_TRUE(tensor.equal(at::full({1001}, sum, at::kLong)));
  });
}

TEST(RingAllReduce, ReduceScatterSumsTheBlockOfEachRank) {
  OnRanks(4, [](ThreadCommunicator& c) {
    const at::Tensor tensor = at::full({10}, 1.0f + static_cast<float>(c.rank()));
    RingReduceScatter(c, tensor, Everybody(4));
    const at::Tensor own = RingBlock(tensor, c.rank(), 4);
    EXPECT_EQ(own.numel(), c.rank() < 2 ? 3 : 2);
    EXPECT_TRUE(own.equal(at::full({own.numel()}, 10.0f)));
  });
}

TEST(RingAllReduce, RefusesUnsupportedReductions) {
  OnRanks(2, [](ThreadCommunicator& c) {
    const at::Tensor tensor = at::ones({4}, at::kLong);
    EXPECT_THROW(RingAllReduce(c, tensor, ReduceOp::kAverage, Everybody(2)), TrainerError);
    EXPECT_THROW(RingAllReduce(c, tensor, ReduceOp::kMax, Everybody(2)), c10::Error);
    EXPECT_THROW(RingAllReduce(c, tensor, ReduceOp::kSum, {1 - c.rank()}), c10::Error)
        << "the rank is not in the ring";
  });
}

TEST(RingSchedule, CompletesEachBlockAtItsOwnerAndThenEverywhere) {
  for (int places = 1; places <= 6; ++places) {
    // values[place][block] is the number of places that have contributed. The lists hold the hops
    // of each place.
    std::vector<std::vector<int>> values(places, std::vector<int>(places, 1));
    std::vector<std::vector<std::pair<int, int>>> scatter(places), gather(places);
    for (int p = 0; p < places; ++p) {
      ForEachReduceScatterHop(p, places, [&](int out, int in) { scatter[p].emplace_back(out, in); });
      ForEachAllGatherHop(p, places, [&](int out, int in) { gather[p].emplace_back(out, in); });
      EXPECT_EQ(std::ssize(scatter[p]), places - 1);
      EXPECT_EQ(std::ssize(gather[p]), places - 1);
    }
    for (const auto& [hops, adds] : {std::pair(scatter, true), std::pair(gather, false)}) {
      for (int hop = 0; hop + 1 < places; ++hop) {
        const auto before = values;
        for (int p = 0; p < places; ++p) {
          const int previous = (p + places - 1) % places, block = hops[p][hop].second;
          ASSERT_EQ(hops[previous][hop].first, block) << "a place receives what the previous one sends";
          values[p][block] = before[previous][block] + (adds ? before[p][block] : 0);
        }
      }
      for (int p = 0; p < places; ++p) EXPECT_EQ(values[p][p], places);
    }
    for (const auto& at_place : values) EXPECT_THAT(at_place, testing::Each(places));
  }
}

TEST(NodeLayout, GroupsRanksByNodeInTheOrderOfFirstRanks) {
  const NodeLayout layout = NodeLayout::Of({"b", "a", "b", "c", "a", "c"});
  EXPECT_THAT(layout.nodes, ElementsAre(Ring{0, 2}, Ring{1, 4}, Ring{3, 5}));
  EXPECT_TRUE(layout.Equal());
  EXPECT_FALSE(NodeLayout::Of({"a", "a", "b"}).Equal());
}

TEST(NodeLayout, IsTheSameOnAllRanks) {
  OnRanks(3, [](ThreadCommunicator& c) {
    const auto nodes = GatherNodes(c, c.rank() == 1 ? "other" : NodeName());
    EXPECT_THAT(NodeLayout::Of(nodes).nodes, ElementsAre(Ring{0, 2}, Ring{1}));
  });
}

TEST(HierarchicalAllReduce, AddsAndAveragesForAnyLayout) {
  const std::vector<std::vector<std::string>> layouts = {{"a"},
                                                         {"a", "a", "a"},
                                                         {"a", "b", "c"},
                                                         {"a", "a", "b", "b"},
                                                         {"a", "b", "a", "b"},
                                                         {"a", "a", "a", "b", "b", "b"},
                                                         {"c", "b", "a", "a", "b", "c"}};
  for (const auto& nodes : layouts) {
    CheckOnAllRanks(static_cast<int>(nodes.size()),
                    [&](Communicator& c, const at::Tensor& tensor, ReduceOp op) {
                      HierarchicalAllReduce(c, tensor, op, NodeLayout::Of(nodes));
                    });
  }
}

TEST(HierarchicalAllReduce, RefusesNodesOfDifferentSizes) {
  OnRanks(3, [](ThreadCommunicator& c) {
    EXPECT_THROW(HierarchicalAllReduce(c, at::ones({4}), ReduceOp::kSum, NodeLayout::Of({"a", "a", "b"})),
                 c10::Error);
  });
}

// A communicator that counts the elements that it sends to ranks on other nodes.
class CountingCommunicator : public ThreadCommunicator {
 public:
  CountingCommunicator(const ThreadCommunicator& c, const std::vector<std::string>& nodes)
      : ThreadCommunicator(c), nodes_(nodes) {}
  std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) override {
    if (nodes_[to] != nodes_[rank()]) elements_between_nodes += tensor.numel();
    return ThreadCommunicator::StartSend(tensor, to);
  }
  int64_t elements_between_nodes = 0;

 private:
  const std::vector<std::string>& nodes_;
};

TEST(HierarchicalAllReduce, SharesTheTrafficBetweenNodesAmongAllRanks) {
  const std::vector<std::string> nodes = {"a", "a", "b", "b"};
  OnRanks(4, [&](ThreadCommunicator& c) {
    const at::Tensor tensor = at::ones({4000});
    CountingCommunicator hierarchical(c, nodes), flat(c, nodes);
    HierarchicalAllReduce(hierarchical, tensor, ReduceOp::kSum, NodeLayout::Of(nodes));
    EXPECT_EQ(hierarchical.elements_between_nodes, 2000)
        << "half of its block of 2000 in each of the two phases";
    c.Barrier();
    RingAllReduce(flat, tensor, ReduceOp::kSum, Everybody(4));
    EXPECT_EQ(flat.elements_between_nodes, c.rank() % 2 == 1 ? 6000 : 0);
  });
}

// Returns, for each rank, the expression of additions that its result consists of.
std::vector<std::string> Expressions(int size) {
  using enum PairStep::Kind;
  std::vector<std::vector<PairStep>> steps;
  std::vector<std::string> held;
  for (int r = 0; r < size; ++r) {
    steps.push_back(RecursiveDoubling(r, size));
    held.push_back(std::to_string(r));
  }
  std::vector<size_t> next(size);
  for (bool moved = true; std::exchange(moved, false);) {
    for (int a = 0; a < size; ++a) {
      if (next[a] == steps[a].size()) continue;
      const auto [kind, b] = steps[a][next[a]];
      if (next[b] == steps[b].size() || steps[b][next[b]].peer != a) continue;
      const PairStep::Kind other = steps[b][next[b]].kind;
      const std::string both = "(" + held[std::min(a, b)] + "+" + held[std::max(a, b)] + ")";
      if (kind == kExchange && other == kExchange) {
        held[a] = held[b] = both;
      } else if (kind == kSend && other == kReceive) {
        held[b] = both;
      } else if (kind == kSendResult && other == kReceiveResult) {
        held[b] = held[a];
      } else {
        continue;  // this step must wait for the step of the peer
      }
      ++next[a], ++next[b];
      moved = true;
    }
  }
  for (int r = 0; r < size; ++r) EXPECT_EQ(next[r], steps[r].size()) << "rank " << r << " waits forever";
  return held;
}

TEST(RecursiveDoubling, GivesAllRanksTheSameExpressionWithEachRankOnce) {
  EXPECT_EQ(Expressions(4)[3], "((0+1)+(2+3))");
  for (int size = 1; size <= 20; ++size) {
    const std::vector<std::string> held = Expressions(size);
    EXPECT_THAT(held, testing::Each(held[0])) << size;
    for (int r = 0; r < size; ++r) {
      EXPECT_THAT(held[0], testing::ContainsRegex("(^|[^0-9])" + std::to_string(r) + "($|[^0-9])"));
    }
    EXPECT_EQ(std::ranges::count(held[0], '+'), size - 1);
  }
}

}  // namespace
}  // namespace scalelab::trainer
