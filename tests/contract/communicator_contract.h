// What every communicator must do; each function is called on all ranks at the same time.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

inline void CheckNumbering(Communicator& c) {
  EXPECT_GE(c.rank(), 0);
  EXPECT_LT(c.rank(), c.size());
  const std::vector<std::string> ranks = c.AllGather(std::string(1, static_cast<char>('a' + c.rank())));
  ASSERT_EQ(ranks.size(), static_cast<size_t>(c.size()));
  for (int r = 0; r < c.size(); ++r) EXPECT_EQ(ranks[r], std::string(1, static_cast<char>('a' + r)));
}

inline void CheckSum(Communicator& c) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
    const at::Tensor t = at::arange(1000).to(type) + c.rank();
    c.AllReduce(t, ReduceOp::kSum);
    const at::Tensor expected = at::arange(1000).to(type) * c.size() + c.size() * (c.size() - 1) / 2;
    EXPECT_TRUE(t.equal(expected)) << c10::toString(type);
  }
}

inline void CheckAverageAndMaximum(Communicator& c) {
  const at::Tensor average = at::full({7}, 1.0f + static_cast<float>(c.rank()));
  c.AllReduce(average, ReduceOp::kAverage);
  EXPECT_TRUE(average.equal(at::full({7}, (static_cast<float>(c.size()) + 1) / 2)));
  const at::Tensor maximum = at::full({3}, 10 - c.rank(), at::kLong);
  c.AllReduce(maximum, ReduceOp::kMax);
  EXPECT_TRUE(maximum.equal(at::full({3}, 10, at::kLong)));
}

inline void CheckManyStartedAtOnceEndInAnyOrderOfWaiting(Communicator& c) {
  std::vector<at::Tensor> tensors;
  std::vector<std::unique_ptr<Work>> works;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(at::full({1 + i * 5000}, i + c.rank(), at::kDouble));
    works.push_back(c.StartAllReduce(tensors.back(), ReduceOp::kSum));
  }
  for (int i = 19; i >= 0; --i) {
    works[i]->Wait();
    const double expected = i * c.size() + c.size() * (c.size() - 1) / 2.0;
    EXPECT_EQ(tensors[i].min().item<double>(), expected);
    EXPECT_EQ(tensors[i].max().item<double>(), expected);
  }
}

inline void CheckForgottenWorkEndsAnyway(Communicator& c) {
  const at::Tensor t = at::ones({100});
  c.StartAllReduce(t, ReduceOp::kSum);  // nobody waits
  c.AllReduce(at::ones({1}), ReduceOp::kSum);
  EXPECT_EQ(t[99].item<float>(), static_cast<float>(c.size()));
}

inline void CheckResultsAreTheSameBitsEverywhere(Communicator& c) {
  torch::manual_seed(100 + c.rank());
  for (int64_t size : {1, 33, 70'000, 300'000}) {
    const at::Tensor t = at::randn({size});
    c.AllReduce(t, ReduceOp::kAverage);
    const std::string bytes(static_cast<const char*>(t.data_ptr()), t.nbytes());
    for (const std::string& other : c.AllGather(bytes)) EXPECT_TRUE(other == bytes) << size;
  }
}

inline void CheckBroadcastKeepsStrides(Communicator& c) {
  const int root = c.size() - 1;
  const at::Tensor t = at::full({2, 3, 4, 5}, 7.0f).contiguous(at::MemoryFormat::ChannelsLast);
  t.mul_(c.rank() == root ? 1 : 0);
  if (c.rank() == root) t.copy_(at::arange(120).view({2, 3, 4, 5}));
  c.Broadcast(t, root);
  EXPECT_TRUE(t.equal(at::arange(120).view({2, 3, 4, 5}).to(at::kFloat)));
}

inline void CheckBarriersInARow(Communicator& c) {
  for (int i = 0; i < 50; ++i) c.Barrier();
  CheckNumbering(c);
}

struct ContractCase {
  const char* name;
  void (*check)(Communicator&);
};

// Without it GoogleTest shows the struct's bytes, which differ from run to run.
inline void PrintTo(const ContractCase& c, std::ostream* out) { *out << c.name; }

inline const ContractCase kCommunicatorContract[] = {
    {"NumbersRanksFromZero", CheckNumbering},
    {"SumsEveryType", CheckSum},
    {"AveragesAndTakesTheMaximum", CheckAverageAndMaximum},
    {"StartsManyAndWaitsInAnyOrder", CheckManyStartedAtOnceEndInAnyOrderOfWaiting},
    {"FinishesWorkThatNobodyWaitsFor", CheckForgottenWorkEndsAnyway},
    {"GivesTheSameBitsToAllRanks", CheckResultsAreTheSameBitsEverywhere},
    {"BroadcastsWhateverTheStrides", CheckBroadcastKeepsStrides},
    {"PassesBarriers", CheckBarriersInARow},
};

}  // namespace scalelab::trainer
