// The contract of Communicator. Each check is called on all ranks at the same time.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {

inline void CheckNumbering(Communicator& c) {
  EXPECT_GE(c.rank(), 0);
  EXPECT_LT(c.rank(), c.size());
  const std::vector<std::string> ranks = c.AllGather(std::string(1, static_cast<char>('a' + c.rank())));
  ASSERT_EQ(ranks.size(), static_cast<size_t>(c.size()));
  for (int r = 0; r < c.size(); ++r) EXPECT_EQ(ranks[r], std::string(1, static_cast<char>('a' + r)));
}

inline void CheckSum(Communicator& c) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kLong, at::kHalf, at::kBFloat16}) {
    // Whole numbers that even bfloat16 holds exactly.
    const at::Tensor t = (at::arange(1000).remainder(20) + c.rank()).to(type);
    c.AllReduce(t, ReduceOp::kSum);
    const at::Tensor expected = at::arange(1000).remainder(20) * c.size() + c.size() * (c.size() - 1) / 2;
    EXPECT_TRUE(t.equal(expected.to(type))) << c10::toString(type);
  }
}

inline void CheckAverageAndMaximum(Communicator& c) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor average = at::full({7}, 1 + c.rank(), type);
    c.AllReduce(average, ReduceOp::kAverage);
    EXPECT_TRUE(average.equal(at::full({7}, (c.size() + 1) / 2.0, type))) << c10::toString(type);
  }
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kLong, at::kHalf, at::kBFloat16}) {
    const at::Tensor maximum = at::full({3}, 10 - c.rank(), type);
    maximum[1] = -5 + c.rank();
    c.AllReduce(maximum, ReduceOp::kMax);
    const std::vector<int64_t> expected = {10, c.size() - 6, 10};
    EXPECT_TRUE(maximum.equal(at::tensor(expected).to(type))) << c10::toString(type);
  }
}

inline void CheckSpans(Communicator& c) {
  // A communicator that sends no messages to other processes measures no time.
  const bool known = c.name() == "gloo" || c.name() == "mpi" || c.name() == "nccl";
  const DeviceEvent before(at::kCPU);
  const auto first = c.StartAllReduce(at::ones({1000}), ReduceOp::kSum);
  const auto second = c.StartAllReduce(at::ones({1000}), ReduceOp::kSum);
  first->Wait();
  second->Wait();
  const double elapsed = DeviceEvent(at::kCPU).SecondsSince(before);
  for (const auto& work : {first.get(), second.get()}) {
    const Span span = work->span();
    ASSERT_EQ(span.begin != nullptr, known);
    ASSERT_EQ(span.end != nullptr, known);
    if (!known) continue;
    const double seconds = span.end->SecondsSince(*span.begin);
    EXPECT_GT(seconds, 0);
    EXPECT_LE(seconds, elapsed);
  }
  if (known) {
    EXPECT_GE(second->span().end->SecondsSince(*first->span().end), 0) << "they end in their order";
  }
}

// A span must remain valid after its tensor was freed: strategies keep spans until the end of a step, but
// free buckets earlier.
inline void CheckSpansKeepNoTensors(Communicator& c) {
  const at::Tensor input = at::ones({1000 * c.size()}), output = at::zeros({1000});
  Span span;
  {
    const auto work = c.StartReduceScatter(output, input, ReduceOp::kSum);
    work->Wait();
    span = work->span();
  }
  // A thread of the communicator may still have a reference to the operation.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (input.use_count() > 1 && std::chrono::steady_clock::now() < limit) sched_yield();
  EXPECT_EQ(input.use_count(), 1u);
  EXPECT_EQ(output.use_count(), 1u);
}

inline void CheckBitsThatAllRanksHave(Communicator& c) {
  // Each rank has all bits except one; they include the sign bit.
  const at::Tensor t = at::full({5}, ~(int64_t{1} << (c.rank() + 40)), at::kLong);
  c.AllReduce(t, ReduceOp::kBitAnd);
  const int64_t expected = ~(((int64_t{1} << c.size()) - 1) << 40);
  EXPECT_TRUE(t.equal(at::full({5}, expected, at::kLong)));
}

inline void CheckReductionsThatMakeNoSense(Communicator& c) {
  EXPECT_THROW(c.AllReduce(at::ones({2}, at::kLong), ReduceOp::kAverage), TrainerError);
  EXPECT_THROW(c.AllReduce(at::ones({2}), ReduceOp::kBitAnd), TrainerError);
  EXPECT_THROW(c.AllReduce(at::ones({2}, at::kBool), ReduceOp::kSum), TrainerError);
  EXPECT_THROW(c.AllReduce(at::ones({2}, at::kByte), ReduceOp::kSum), TrainerError);
  EXPECT_THROW(c.AllReduce(at::ones({2}, at::kInt), ReduceOp::kMax), TrainerError);
  EXPECT_THROW(c.AllReduce(at::ones({4, 4}).select(1, 0), ReduceOp::kSum), TrainerError);  // has gaps
  EXPECT_THROW(c.ReduceScatter(at::ones({2}), at::ones({2 * c.size() + 1}), ReduceOp::kSum), TrainerError);
  EXPECT_THROW(c.AllGatherInto(at::ones({2 * c.size()}, at::kLong), at::ones({2})), TrainerError);
  EXPECT_THROW(c.Send(at::ones({1}), c.rank()), TrainerError);
  EXPECT_THROW(c.Receive(at::ones({1}), c.size()), TrainerError);
  CheckSum(c);  // the communicator still works
}

inline void CheckReduceScatter(Communicator& c) {
  for (at::ScalarType type : {at::kFloat, at::kLong, at::kHalf, at::kBFloat16}) {
    for (int64_t length : {1, 7, 5000}) {
      // On each rank the elements of block b are b + 1 plus the rank.
      const at::Tensor input = (at::arange(1, c.size() + 1).repeat_interleave(length) + c.rank()).to(type);
      const at::Tensor before = input.clone();
      const at::Tensor output = at::zeros({length}, type);
      c.ReduceScatter(output, input, ReduceOp::kSum);
      const int64_t expected = (c.rank() + 1) * c.size() + c.size() * (c.size() - 1) / 2;
      EXPECT_TRUE(output.equal(at::full({length}, expected, type))) << c10::toString(type) << length;
      EXPECT_TRUE(input.equal(before)) << "the input must not change";
    }
  }
  const at::Tensor maximum = at::zeros({2}), average = at::zeros({2});
  const at::Tensor input = at::full({2 * c.size()}, static_cast<float>(c.rank()));
  c.ReduceScatter(maximum, input, ReduceOp::kMax);
  c.ReduceScatter(average, input, ReduceOp::kAverage);
  EXPECT_TRUE(maximum.equal(at::full({2}, static_cast<float>(c.size() - 1))));
  EXPECT_TRUE(average.equal(at::full({2}, static_cast<float>(c.size() - 1) / 2)));
}

inline void CheckAllGather(Communicator& c) {
  for (at::ScalarType type :
       {at::kFloat, at::kLong, at::kHalf, at::kBFloat16, at::kDouble, at::kInt, at::kByte}) {
    const at::Tensor output = at::zeros({c.size(), 3}, type);
    c.AllGatherInto(output, at::full({3}, c.rank() + 1, type));
    const at::Tensor expected = at::arange(1, c.size() + 1).to(type).view({-1, 1}).expand({c.size(), 3});
    EXPECT_TRUE(output.equal(expected)) << c10::toString(type);
  }
  const at::Tensor large = at::zeros({c.size(), 100'000});
  large[c.rank()].fill_(c.rank() + 1);
  c.AllGatherInto(large, large[c.rank()]);  // in place
  for (int r = 0; r < c.size(); ++r) {
    EXPECT_EQ(large[r].min().item<float>(), static_cast<float>(r + 1));
    EXPECT_EQ(large[r].max().item<float>(), static_cast<float>(r + 1));
  }
}

inline void CheckUnequalAllGather(Communicator& c) {
  const auto gathers = [&](const std::function<int64_t(int)>& count_of, at::ScalarType type, bool in_place) {
    std::vector<int64_t> counts;
    std::vector<at::Tensor> blocks;
    for (int r = 0; r < c.size(); ++r) {
      counts.push_back(count_of(r));
      blocks.push_back((at::arange(counts[r]).remainder(50) + r).to(type));
    }
    const at::Tensor expected = at::cat(blocks), output = at::zeros_like(expected);
    at::Tensor input = blocks[c.rank()];
    if (in_place) {
      input = output.split_with_sizes(counts)[c.rank()];
      input.copy_(blocks[c.rank()]);
    }
    c.AllGatherV(output, input, counts);
    EXPECT_TRUE(output.equal(expected)) << c10::toString(type);
  };
  for (at::ScalarType type :
       {at::kFloat, at::kLong, at::kHalf, at::kBFloat16, at::kDouble, at::kInt, at::kByte}) {
    gathers([](int r) { return (r + 1) % 3 * 2; }, type, false);  // 2, 4, none, 2, ...
  }
  for (const bool in_place : {false, true}) {
    gathers([](int r) { return r * 50'000; }, at::kFloat, in_place);
    gathers([](int r) { return r == 0 ? 70'001 : 0; }, at::kFloat, in_place);
    gathers([](int) { return 5; }, at::kFloat, in_place);
  }
  gathers([](int) { return 0; }, at::kFloat, false);
  // Starts two at once.
  const std::vector<int64_t> one_more(c.size(), 3);
  const at::Tensor first = at::zeros({3 * c.size()}), second = at::zeros({3 * c.size()});
  const auto a = c.StartAllGatherV(first, at::full({3}, 1.0f + c.rank()), one_more),
             b = c.StartAllGatherV(second, at::full({3}, 2.0f + c.rank()), one_more);
  b->Wait();
  a->Wait();
  EXPECT_TRUE((second - first).equal(at::ones({3 * c.size()})));
  // Invalid arguments.
  const at::Tensor three = at::zeros({3});
  EXPECT_THROW(c.AllGatherV(first, three, {}), TrainerError);
  EXPECT_THROW(c.AllGatherV(first, at::zeros({2}), one_more), TrainerError);
  EXPECT_THROW(c.AllGatherV(at::zeros({1}), three, one_more), TrainerError);
  EXPECT_THROW(c.AllGatherV(first, at::zeros({3}, at::kLong), one_more), TrainerError);
}

// The largest and smallest values of a type, and an odd number of elements.
inline void CheckSmallIntegers(Communicator& c) {
  const std::vector<int64_t> bytes = {0, 1, 127, 128, 255}, words = {0, 1 << 20, -1, INT32_MAX, INT32_MIN};
  for (const auto& [values, type] : {std::pair(bytes, at::kByte), std::pair(words, at::kInt)}) {
    const at::Tensor expected = at::tensor(values).to(type);
    const at::Tensor t = c.rank() == 0 ? expected.clone() : at::zeros({5}, type);
    c.Broadcast(t, 0);
    EXPECT_TRUE(t.equal(expected)) << c10::toString(type);
    if (c.size() == 1) continue;
    const at::Tensor received = at::zeros({5}, type);
    const auto sending = c.StartSend(t, (c.rank() + 1) % c.size());
    c.Receive(received, (c.rank() + c.size() - 1) % c.size());
    sending->Wait();
    EXPECT_TRUE(received.equal(expected)) << c10::toString(type);
  }
}

inline void CheckSendAndReceive(Communicator& c) {
  if (c.size() == 1) return;
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  for (int64_t length : {1, 300'000}) {
    const at::Tensor mine = at::full({length}, c.rank(), at::kLong),
                     received = at::zeros({length}, at::kLong);
    // All ranks send first. A send may wait for its receiver, but starting one must not block.
    auto sending = c.StartSend(mine, next);
    c.Receive(received, previous);
    sending->Wait();
    EXPECT_TRUE(received.equal(at::full({length}, previous, at::kLong)));
  }
  // Messages from one rank to another keep their order, and may overlap collective operations.
  const at::Tensor first = at::full({2}, 1.0f), second = at::full({2}, 2.0f);
  if (c.rank() == 0) {
    const at::Tensor answer = at::zeros({1}, at::kBFloat16);
    auto receiving = c.StartReceive(answer, 1);
    c.Barrier();
    c.Send(first, 1);
    c.Send(second, 1);
    receiving->Wait();
    EXPECT_EQ(answer.item<float>(), 3.0f);
  } else {
    c.Barrier();
    if (c.rank() > 1) return;
    const at::Tensor a = at::zeros({2}), b = at::zeros({2});
    c.Receive(a, 0);
    c.Receive(b, 0);
    EXPECT_TRUE(a.equal(first));
    EXPECT_TRUE(b.equal(second));
    c.Send(at::full({1}, 3.0f, at::kBFloat16), 0);
  }
}

// Returns whether the operation ends within half a minute.
inline bool Ends(Work& work) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (; !work.Done(); sched_yield()) {
    if (std::chrono::steady_clock::now() > limit) return false;
  }
  return true;
}

inline void CheckDone(Communicator& c) {
  const at::Tensor ones = at::ones({100'000}), gathered = at::zeros({c.size(), 3});
  const auto sum = c.StartAllReduce(ones, ReduceOp::kSum);
  const auto gather = c.StartAllGather(gathered, at::full({3}, static_cast<float>(c.rank())));
  for (const auto& work : {sum.get(), gather.get()}) {
    EXPECT_TRUE(Ends(*work));
    work->Wait();
    EXPECT_TRUE(work->Done()) << "it stays true after Wait";
  }
  EXPECT_EQ(ones[0].item<float>(), static_cast<float>(c.size()));
  EXPECT_EQ(gathered[c.size() - 1][0].item<float>(), static_cast<float>(c.size() - 1));
  if (c.size() == 1) return;
  for (int64_t length : {1, 300'000}) {
    const at::Tensor t = at::full({length}, c.rank() == 0 ? 7 : 0, at::kLong);
    if (c.rank() > 1) {
      c.Barrier();
      continue;
    }
    std::unique_ptr<Work> work;
    if (c.rank() == 1) {
      work = c.StartReceive(t, 0);
      EXPECT_FALSE(work->Done()) << "nothing was sent";
    }
    c.Barrier();
    if (c.rank() == 0) work = c.StartSend(t, 1);
    EXPECT_TRUE(Ends(*work));
    work->Wait();
    EXPECT_TRUE(t.equal(at::full({length}, 7, at::kLong)));
  }
}

// Each other rank sends three messages of two parts to rank 0, which does not know in which order the ranks send.
inline void CheckReceiveFromAny(Communicator& c) {
  constexpr int kMessages = 3;
  if (c.size() == 1 || c.name() == "nccl") {
    const at::Tensor nothing = at::zeros({1});
    EXPECT_THROW(c.ReceiveFromAny(nothing), TrainerError);
    return;
  }
  for (int64_t length : {1, 300'000}) {
    c.Barrier();  // all messages of the length before have been received
    if (c.rank() > 0) {
      for (int i = 0; i < kMessages; ++i) {
        c.Send(at::full({2}, c.rank() * 10 + i, at::kByte), 0);
        c.Send(at::full({length}, c.rank() * 10 + i, at::kFloat), 0);
      }
      continue;
    }
    std::vector<int> received(c.size());
    for (int i = 0; i < kMessages * (c.size() - 1); ++i) {
      const at::Tensor head = at::zeros({2}, at::kByte), body = at::zeros({length});
      const int from = c.ReceiveFromAny(head);
      ASSERT_GT(from, 0);
      ASSERT_LT(from, c.size());
      c.Receive(body, from);
      const int expected = from * 10 + received[from]++;
      EXPECT_TRUE(head.equal(at::full({2}, expected, at::kByte))) << "messages of a rank keep their order";
      EXPECT_TRUE(body.equal(at::full({length}, static_cast<float>(expected))));
    }
    for (int r = 1; r < c.size(); ++r) EXPECT_EQ(received[r], kMessages);
  }
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
  c.StartAllReduce(t, ReduceOp::kSum);  // Wait is never called
  c.AllReduce(at::ones({1}), ReduceOp::kSum);
  EXPECT_EQ(t[99].item<float>(), static_cast<float>(c.size()));
}

inline void CheckResultsAreTheSameBitsEverywhere(Communicator& c) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (int64_t size : {1, 33, 70'000, 300'000}) {
      // Computes its own numbers, because ranks that are threads share the process's random generator.
      const at::Tensor t = (at::arange(size, at::kDouble) * 0.37 + 1.7 * c.rank()).sin().exp().to(type);
      c.AllReduce(t, ReduceOp::kAverage);
      const std::string bytes(static_cast<const char*>(t.data_ptr()), t.nbytes());
      for (const std::string& other : c.AllGather(bytes)) EXPECT_TRUE(other == bytes) << size;
    }
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

// Checks every operation in a group whose ranks here are `members`.
inline void CheckOneGroup(Communicator& whole, Communicator& group, const std::vector<int>& members) {
  const auto size = static_cast<int>(members.size());
  ASSERT_EQ(group.size(), size);
  ASSERT_EQ(members[group.rank()], whole.rank()) << "ordered by their ranks";
  EXPECT_EQ(group.name(), whole.name());
  int64_t sum = 0;
  for (int member : members) sum += member;
  const at::Tensor blocking = at::full({3}, whole.rank(), at::kLong),
                   started = at::full({40'000}, whole.rank(), at::kFloat);
  group.AllReduce(blocking, ReduceOp::kSum);
  EXPECT_TRUE(blocking.equal(at::full({3}, sum, at::kLong)));
  group.StartAllReduce(started, ReduceOp::kAverage)->Wait();
  EXPECT_NEAR(started[39'999].item<float>(), static_cast<double>(sum) / size, 1e-6);
  const at::Tensor gathered = at::zeros({size}, at::kLong);
  group.AllGatherInto(gathered, at::full({1}, whole.rank(), at::kLong));
  for (int r = 0; r < size; ++r) EXPECT_EQ(gathered[r].item<int64_t>(), members[r]);
  const at::Tensor root = at::full({2}, whole.rank(), at::kLong);
  group.Broadcast(root, size - 1);
  EXPECT_EQ(root[1].item<int64_t>(), members.back());
  EXPECT_EQ(group.AllGather(std::to_string(whole.rank() % 10))[0], std::to_string(members[0] % 10));
  group.Barrier();
  if (size == 1) return;
  // A message in the group is not confused with a message between the same ranks outside of the group.
  const int next = (group.rank() + 1) % size, previous = (group.rank() + size - 1) % size;
  const at::Tensor inside = at::full({5}, 1.0f), outside = at::full({5}, 2.0f);
  const auto first = whole.StartSend(outside, members[next]), second = group.StartSend(inside, next);
  const at::Tensor a = at::zeros({5}), b = at::zeros({5});
  group.Receive(a, previous);
  whole.Receive(b, members[previous]);
  EXPECT_TRUE(a.equal(inside));
  EXPECT_TRUE(b.equal(outside));
  first->Wait();
  second->Wait();
}

inline std::vector<int> Members(const Communicator& c, const std::function<int(int)>& group_of) {
  std::vector<int> members;
  for (int r = 0; r < c.size(); ++r) {
    if (group_of(r) == group_of(c.rank())) members.push_back(r);
  }
  return members;
}

inline void CheckGroups(Communicator& c) {
  const std::function<int(int)> divisions[] = {[](int) { return 7; },                  // one group of all
                                               [](int r) { return r == 0 ? 5 : -3; },  // unequal sizes
                                               [](int r) { return r % 2; },  // neighbours in different groups
                                               [](int r) { return -r; },     // each rank alone
                                               [](int r) { return r < 3 ? 1 : 1 << 30; }};  // unequal sizes
  std::vector<std::unique_ptr<Communicator>> groups;
  for (const auto& group_of : divisions) {
    groups.push_back(c.Split(group_of(c.rank())));
    CheckOneGroup(c, *groups.back(), Members(c, group_of));
  }
  // A group can still be used after other groups were made.
  for (size_t i = 0; i < groups.size(); ++i) CheckOneGroup(c, *groups[i], Members(c, divisions[i]));
  CheckSum(c);
}

inline void CheckGroupsOfGroups(Communicator& c) {
  const auto odd_or_even = c.Split(c.rank() % 2);
  const auto first_or_rest = odd_or_even->Split(odd_or_even->rank() == 0 ? 0 : 1);
  CheckOneGroup(c, *first_or_rest, Members(c, [](int r) { return r < 2 ? -1 - r : r % 2; }));
}

// Operations of a group do not wait for those of the ranks outside of it.
inline void CheckGroupsWorkWhileAllWork(Communicator& c) {
  const auto group = c.Split(c.rank() % 2);
  const at::Tensor all = at::full({100'000}, 1.0f), ours = at::full({100'000}, 1.0f);
  if (c.rank() % 2 == 0) {
    const auto work = c.StartAllReduce(all, ReduceOp::kSum);
    group->AllReduce(ours, ReduceOp::kSum);
    work->Wait();
  } else {
    const auto work = group->StartAllReduce(ours, ReduceOp::kSum);
    c.StartAllReduce(all, ReduceOp::kSum)->Wait();
    work->Wait();
  }
  EXPECT_EQ(all[99'999].item<float>(), static_cast<float>(c.size()));
  EXPECT_EQ(ours[99'999].item<float>(), static_cast<float>(group->size()));
}

struct ContractCase {
  const char* name;
  void (*check)(Communicator&);
};

// Without this function GoogleTest prints the struct's bytes, which differ from run to run.
inline void PrintTo(const ContractCase& c, std::ostream* out) { *out << c.name; }

inline const ContractCase kCommunicatorContract[] = {
    {"NumbersRanksFromZero", CheckNumbering},
    {"SumsEveryType", CheckSum},
    {"AveragesAndTakesTheMaximum", CheckAverageAndMaximum},
    {"MeasuresWhenOperationsWereInProgress", CheckSpans},
    {"SpansKeepNoTensors", CheckSpansKeepNoTensors},
    {"KeepsBitsThatAllRanksHave", CheckBitsThatAllRanksHave},
    {"RefusesInvalidArguments", CheckReductionsThatMakeNoSense},
    {"ReducesAndScatters", CheckReduceScatter},
    {"GathersTensors", CheckAllGather},
    {"GathersTensorsOfUnequalSize", CheckUnequalAllGather},
    {"CarriesSmallIntegers", CheckSmallIntegers},
    {"SendsAndReceives", CheckSendAndReceive},
    {"ReportsWhetherOperationsHaveEnded", CheckDone},
    {"ReceivesFromTheRankThatSendsFirst", CheckReceiveFromAny},
    {"StartsManyAndWaitsInAnyOrder", CheckManyStartedAtOnceEndInAnyOrderOfWaiting},
    {"FinishesWorkWithoutWait", CheckForgottenWorkEndsAnyway},
    {"GivesTheSameBitsToAllRanks", CheckResultsAreTheSameBitsEverywhere},
    {"BroadcastsWithAnyStrides", CheckBroadcastKeepsStrides},
    {"PassesBarriers", CheckBarriersInARow},
    {"SplitsIntoGroups", CheckGroups},
    {"SplitsGroups", CheckGroupsOfGroups},
    {"WorksInGroupsWhileAllWork", CheckGroupsWorkWhileAllWork},
};

}  // namespace scalelab::trainer
