// Tests the background loop and the strategy of native/horovod through their counters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "nlohmann/json.hpp"
#include "tests/fakes/thread_communicator.h"
#include "tests/unit/trainer/small_model.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/strategies/horovod_strategy.h"

namespace scalelab::trainer {
namespace {

using horovod::BackgroundLoop;
using horovod::Counters;
using horovod::Options;
using testing::HasSubstr;

constexpr int kTensors = 30;

std::string Name(int i) { return "tensor." + std::to_string(i); }
at::Tensor Value(int i, int rank, int step) { return at::full({i + 1}, i * 10.0f + rank + step); }

// Runs one step in which the rank submits the tensors in `order`. Returns the reduced tensors.
std::vector<at::Tensor> Step(BackgroundLoop& loop, const std::vector<int>& order, int rank, int step) {
  std::vector<at::Tensor> tensors(kTensors);
  loop.Open();
  for (int i : order) loop.Submit(Name(i), tensors[i] = Value(i, rank, step));
  loop.Close();
  return tensors;
}

std::vector<int> Rotated(int by) {
  std::vector<int> order(kTensors);
  for (int i = 0; i < kTensors; ++i) order[i] = (i * 7 + by * 11) % kTensors;
  return order;
}

TEST(BackgroundLoop, ReducesTensorsThatAreReadyInAnotherOrderOnEachRank) {
  constexpr int kRanks = 4, kSteps = 6;
  std::vector<Counters> counters(kRanks);
  OnRanks(kRanks, [&](ThreadCommunicator& c) {
    BackgroundLoop loop(c, at::kCPU, {});
    for (int step = 0; step < kSteps; ++step) {
      const auto tensors = Step(loop, Rotated(c.rank() + step), c.rank(), step);
      for (int i = 0; i < kTensors; ++i) {
        EXPECT_TRUE(tensors[i].equal(at::full({i + 1}, i * 10.0f + 1.5f + step))) << i;
      }
    }
    counters[c.rank()] = loop.counters();
  });
  for (const Counters& count : counters) {
    EXPECT_EQ(count.cache_misses, kTensors) << "each tensor is negotiated once";
    EXPECT_EQ(count.cache_hits, kTensors * (kSteps - 1));
    EXPECT_GE(count.negotiations, 1);
    EXPECT_LE(count.negotiations, counters[0].cycles);
    EXPECT_EQ(count.bytes, kSteps * kTensors * (kTensors + 1) / 2 * 4);
    EXPECT_EQ(count.all_reduces, counters[0].all_reduces);
    EXPECT_EQ(count.cycles, counters[0].cycles);
  }
}

TEST(BackgroundLoop, NeedsOneAllReduceToAgreeOnKnownTensors) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    // The cycle time is longer than the test, so a cycle starts only when a step is closed.
    BackgroundLoop loop(c, at::kCPU, {.cycle_seconds = 1000});
    Step(loop, Rotated(0), c.rank(), 0);
    for (int step = 1; step < 4; ++step) {
      const Counters before = loop.counters();
      c.all_reduces = 0;
      Step(loop, Rotated(c.rank()), c.rank(), step);
      const Counters after = loop.counters();
      EXPECT_EQ(after.cycles, before.cycles + 1);
      EXPECT_EQ(after.negotiations, before.negotiations);
      EXPECT_EQ(c.all_reduces, 2) << "one for the bit vector and one for the gradients";
    }
  });
}

// The negotiation uses another communicator than the gradients. On a GPU, a negotiation on the same
// communicator would wait for earlier gradients.
TEST(BackgroundLoop, NegotiatesOverItsControlChannelOnly) {
  auto control_group = std::make_shared<ThreadCommunicator::Group>(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    auto channel = std::make_unique<ThreadCommunicator>(control_group, c.rank());
    const ThreadCommunicator& control = *channel;
    BackgroundLoop loop(c, at::kCPU, {.cycle_seconds = 1000, .autotune = true}, std::move(channel));
    for (int step = 0; step < 12; ++step) {
      const auto tensors = Step(loop, Rotated(c.rank() + step), c.rank(), step);
      EXPECT_TRUE(tensors[3].equal(at::full({4}, 30.5f + step)));
    }
    EXPECT_EQ(c.all_reduces, loop.counters().all_reduces) << "gradients only";
    EXPECT_EQ(control.all_reduces, loop.counters().cycles) << "bit vectors only";
    EXPECT_EQ(c.others, 0) << "no other operation";
  });
}

// The rings wait on the host for each message.
TEST(HorovodStrategy, RefusesItsOwnAllReducesOverNccl) {
  class Nccl : public ThreadCommunicator {
   public:
    Nccl() : ThreadCommunicator(std::make_shared<Group>(2), 0) {}
    std::string_view name() const override { return "nccl"; }
  };
  for (const char* all_reduce : {"ring", "hierarchical"}) {
    Nccl nccl;
    TrainingSpec spec;
    spec.engine = "native/horovod", spec.all_reduce = all_reduce;
    const auto models = EqualModels(1);
    try {
      MakeStrategy(spec, *models[0], nccl);
      FAIL() << all_reduce;
    } catch (const TrainerError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("set all_reduce to \"library\", or backend to \"mpi\" or \"gloo\""));
    }
  }
}

TEST(BackgroundLoop, FusesUpToTheThreshold) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    BackgroundLoop all(c, at::kCPU, {.cycle_seconds = 1000});
    Step(all, Rotated(0), c.rank(), 0);
    EXPECT_EQ(all.counters().all_reduces, 1);
    EXPECT_EQ(all.counters().fused_tensors, kTensors);
    c.Barrier();
    BackgroundLoop none(c, at::kCPU, {.fusion_bytes = 0, .cycle_seconds = 1000});
    Step(none, Rotated(0), c.rank(), 0);
    EXPECT_EQ(none.counters().all_reduces, kTensors);
    EXPECT_EQ(none.counters().fused_tensors, 0);
  });
}

TEST(BackgroundLoop, AveragesWithTheSelectedAlgorithm) {
  using enum horovod::AllReduce;
  for (const auto all_reduce : {kLibrary, kRing, kHierarchical}) {
    OnRanks(4, [&](ThreadCommunicator& c) {
      BackgroundLoop loop(c, at::kCPU, {.all_reduce = all_reduce, .node = c.rank() < 2 ? "a" : "b"});
      for (int step = 0; step < 2; ++step) {
        const auto tensors = Step(loop, Rotated(c.rank()), c.rank(), step);
        for (int i = 0; i < kTensors; ++i) {
          EXPECT_TRUE(tensors[i].equal(at::full({i + 1}, i * 10.0f + 1.5f + step))) << i;
        }
      }
      const Counters& count = loop.counters();
      EXPECT_EQ(count.ring_all_reduces, all_reduce == kRing ? count.all_reduces : 0);
      EXPECT_EQ(count.hierarchical_all_reduces, all_reduce == kHierarchical ? count.all_reduces : 0);
    });
  }
}

TEST(BackgroundLoop, UsesTheCommunicatorForUnequalNodesAndWarnsOnce) {
  std::vector<std::string> reports(3);
  OnRanks(3, [&](ThreadCommunicator& c) {
    Options options{.all_reduce = horovod::AllReduce::kHierarchical, .node = c.rank() < 2 ? "a" : "b"};
    options.warn = [&](std::string_view text) { reports[c.rank()] += text; };
    BackgroundLoop loop(c, at::kCPU, options);
    for (int step = 0; step < 2; ++step) Step(loop, Rotated(0), c.rank(), step);
    EXPECT_EQ(loop.counters().hierarchical_all_reduces, 0);
  });
  EXPECT_THAT(reports[0], testing::MatchesRegex("all_reduce \"hierarchical\" .* there are 2, 1: .*"));
  EXPECT_EQ(reports[1] + reports[2], "");
}

TEST(BackgroundLoop, RenegotiatesTensorsThatDoNotFitIntoTheCache) {
  OnRanks(3, [&](ThreadCommunicator& c) {
    BackgroundLoop loop(c, at::kCPU, {.cache_capacity = 7});
    for (int step = 0; step < 5; ++step) {
      const auto tensors = Step(loop, Rotated(c.rank() + step), c.rank(), step);
      for (int i = 0; i < kTensors; ++i) EXPECT_TRUE(tensors[i].equal(Value(i, 1, step))) << i;
    }
    EXPECT_GT(loop.counters().cache_misses, kTensors);
    EXPECT_EQ(loop.counters().cache_misses + loop.counters().cache_hits, 5 * kTensors);
  });
}

TEST(BackgroundLoop, RenegotiatesATensorWhoseShapeChanges) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    BackgroundLoop loop(c, at::kCPU, {});
    for (int64_t size : {4, 4, 9, 9}) {
      const at::Tensor tensor = at::full({size}, 1.0f + static_cast<float>(c.rank()));
      loop.Open();
      loop.Submit("t", tensor);
      loop.Close();
      EXPECT_TRUE(tensor.equal(at::full({size}, 1.5f)));
    }
    EXPECT_EQ(loop.counters().cache_misses, 2);
    EXPECT_EQ(loop.counters().cache_hits, 2);
  });
}

TEST(BackgroundLoop, RefusesShapesThatDifferOnAllRanks) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    BackgroundLoop loop(c, at::kCPU, {});
    loop.Open();
    loop.Submit("weight", at::zeros({3, 2 + c.rank()}));
    try {
      loop.Close();
      ADD_FAILURE() << "not refused";
    } catch (const TrainerError& error) {
      EXPECT_THAT(error.what(), HasSubstr("\"weight\" is Float [3, 2] on rank 0 and Float [3, 3] on rank 1"));
    }
    EXPECT_THROW(loop.Open(), TrainerError) << "it cannot continue after a failure";
  });
}

TEST(BackgroundLoop, CountsARankThatSubmitsLessAsZerosAndGivesItTheAverage) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    BackgroundLoop loop(c, at::kCPU, {});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor both = at::full({5}, 2.0f), one = at::full({2, 3}, 8.0f);
      loop.Open();
      loop.Submit("both", both);
      if (c.rank() == 1) loop.Submit("one", one);
      const auto received = loop.Close();
      EXPECT_TRUE(both.equal(at::full({5}, 2.0f)));
      if (c.rank() == 1) {
        EXPECT_TRUE(one.equal(at::full({2, 3}, 4.0f)));
        EXPECT_TRUE(received.empty());
      } else {
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].first, "one");
        EXPECT_TRUE(received[0].second.equal(at::full({6}, 4.0f)));
      }
    }
    // This tensor is cached on all ranks, but no rank submits it.
    loop.Open();
    EXPECT_TRUE(loop.Close().empty());
  });
}

TEST(BackgroundLoop, LetsRanksWithLessDataJoinAndStartAgain) {
  OnRanks(3, [&](ThreadCommunicator& c) {
    BackgroundLoop loop(c, at::kCPU, {});
    for (int epoch = 0; epoch < 2; ++epoch) {
      const int steps = 2 + 2 * c.rank();
      for (int step = 0; step < steps; ++step) {
        const auto tensors = Step(loop, Rotated(c.rank()), 0, 3);
        const float training = step < 2 ? 3 : step < 4 ? 2 : 1;  // ranks
        for (int i = 0; i < kTensors; ++i) {
          EXPECT_TRUE(at::allclose(tensors[i], Value(i, 0, 3) * (training / 3), 1e-6)) << i << " " << step;
        }
      }
      loop.Join();
      EXPECT_EQ(c.AllGather("x").size(), 3u) << "the caller may use the communicator again";
    }
    EXPECT_EQ(loop.counters().cache_misses, kTensors);
  });
}

// The tensor is in the cache, so only the stall inspector sends it back to rank 0.
TEST(BackgroundLoop, ReportsTheRankThatKeepsATensorWaiting) {
  std::promise<std::string> report;
  std::shared_future<std::string> reported = report.get_future().share();
  OnRanks(3, [&](ThreadCommunicator& c) {
    bool reported_once = false;
    Options options{.stall_warning_seconds = 0.02};
    options.warn = [&](std::string_view text) {
      if (!std::exchange(reported_once, true)) report.set_value(std::string(text));
    };
    BackgroundLoop loop(c, at::kCPU, options);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor early = at::ones({3}), late = at::ones({2});
      loop.Open();
      loop.Submit("early", early);
      if (step == 1 && c.rank() == 2) reported.wait();  // waits until the stall is reported
      loop.Submit("late", late);
      loop.Close();
      EXPECT_TRUE(late.equal(at::ones({2})));
    }
    EXPECT_EQ(loop.counters().stall_warnings > 0, c.rank() == 0);
  });
  EXPECT_THAT(reported.get(), testing::MatchesRegex("tensor \"late\" has waited .* s for rank 2: .*"));
}

TEST(BackgroundLoop, TunesAllRanksAlike) {
  std::vector<horovod::Autotuner::Setting> settings(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    BackgroundLoop loop(c, at::kCPU, {.autotune = true});
    std::set<std::pair<int64_t, double>> seen;
    for (int step = 0; step < 700; ++step) {
      const at::Tensor tensor = at::ones({8});
      loop.Open();
      loop.Submit("t", tensor);
      loop.Close();
      seen.insert({loop.setting().fusion_bytes, loop.setting().cycle_seconds});
    }
    EXPECT_GE(seen.size(), 4u) << "the start and its neighbours";
    settings[c.rank()] = loop.setting();
  });
  EXPECT_EQ(settings[0].fusion_bytes, settings[1].fusion_bytes);
  EXPECT_EQ(settings[0].cycle_seconds, settings[1].cycle_seconds);
}

// Steps are faster with the shorter cycle, but evaluations come between them.
TEST(BackgroundLoop, TunesByTheStepsWithoutThePausesBetweenThem) {
  using std::chrono::milliseconds;
  constexpr double kFast = 0.0005;
  const Options options{.autotune = true};
  OnRanks(2, [&](ThreadCommunicator& c) {
    BackgroundLoop loop(c, at::kCPU, options);
    for (int step = 0; step < 80; ++step) {
      const bool fast =
          loop.setting().cycle_seconds == kFast && loop.setting().fusion_bytes == options.fusion_bytes;
      if (c.rank() == 0) std::this_thread::sleep_for(milliseconds(fast ? 2 : 20));
      if (c.rank() == 0 && fast && step % 10 == 5) std::this_thread::sleep_for(milliseconds(300));
      const at::Tensor tensor = at::ones({8});
      loop.Open();
      loop.Submit("t", tensor);
      loop.Close();
    }
    EXPECT_EQ(loop.setting().cycle_seconds, kFast);
    EXPECT_EQ(loop.setting().fusion_bytes, options.fusion_bytes);
  });
}

TEST(HorovodStrategy, WritesATimelineOfEveryTensor) {
  const std::string path = testing::TempDir() + "/horovod-timeline-" + std::to_string(getpid()) + ".json";
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    HorovodStrategy strategy(model, c, {.timeline_path = path});
    for (int step = 0; step < 3; ++step) strategy.Backward(LossOf(model, Images(4 * c.rank(), 4)));
  });
  std::ifstream file(path);
  const nlohmann::json events = nlohmann::json::parse(file);
  std::filesystem::remove(path);
  std::set<std::string> tensors;
  std::map<std::string, int> states;
  for (const auto& event : events) {
    if (event["name"] == "thread_name") tensors.insert(event["args"]["name"].get<std::string>());
    if (event["ph"] == "X") {
      ++states[event["name"].get<std::string>()];
      EXPECT_GE(event["dur"].get<double>(), 0);
    }
  }
  EXPECT_THAT(tensors, testing::ElementsAre("bias", "first", "second"));
  EXPECT_EQ(states["NEGOTIATE_ALLREDUCE"], 9);
  EXPECT_EQ(states["QUEUE"], 9);
  EXPECT_EQ(states["ALLREDUCE"], 9);
  EXPECT_EQ(states["MEMCPY_IN_FUSION_BUFFER"], states["MEMCPY_OUT_FUSION_BUFFER"]);
}

TEST(HorovodStrategy, HalvesTheBytesOnTheWire) {
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    int64_t bytes[2];
    for (const bool fp16 : {false, true}) {
      HorovodStrategy strategy(model, c, {.fp16 = fp16});
      bytes[fp16] = strategy.Backward(LossOf(model, Images(4 * c.rank(), 4))).bytes;
      EXPECT_EQ(strategy.counters().bytes, bytes[fp16]);
      EXPECT_EQ(model.first.grad().scalar_type(), at::kFloat);
    }
    EXPECT_EQ(bytes[false], 2 * bytes[true]);
  });
}

// Sets a promise when the first gradient has been reduced.
class SignallingCommunicator : public ThreadCommunicator {
 public:
  explicit SignallingCommunicator(const ThreadCommunicator& c) : ThreadCommunicator(c) {}
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override {
    auto work = ThreadCommunicator::StartAllReduce(tensor, op);
    if (tensor.scalar_type() == at::kFloat && !std::exchange(signalled_, true)) reduced.set_value();
    return work;
  }
  std::promise<void> reduced;

 private:
  bool signalled_ = false;
};

TEST(HorovodStrategy, ReducesWhileBackwardStillRuns) {
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    SignallingCommunicator signalling(c);
    HorovodStrategy strategy(model, signalling, {});
    const at::Tensor loss = LossOf(model, Images(0, 4));
    // Autograd reaches this tensor after the gradients of the second convolution and before those
    // of the first.
    model.between.register_hook([&](const at::Tensor&) {
      EXPECT_EQ(signalling.reduced.get_future().wait_for(std::chrono::seconds(20)),
                std::future_status::ready);
    });
    strategy.Backward(loss);
  });
}

}  // namespace
}  // namespace scalelab::trainer
