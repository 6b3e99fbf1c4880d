// Tests that training continues from what RunState keeps, with the same and with another number of ranks.
#include "worker/trainer/loop/run_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ostream>

#include "tests/unit/trainer/checkpoint/saved_run.h"
#include "tests/unit/trainer/small_model.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr int kBefore = 4, kSteps = 8, kGlobalBatch = 12;

Batch Rows(const at::Tensor& samples) {
  return {Images(0, 256).index_select(0, samples), samples.remainder(4)};
}

// One rank of a run that trains SmallModel.
class Rank : public SavedRank {
 public:
  Rank(TrainingSpec spec, SmallModel& model, Communicator& communicator, const Saved* saved = nullptr)
      : SavedRank((spec.global_batch = kGlobalBatch, spec), model, communicator, Rows, saved) {}
};

// Returns models with other parameters than those of EqualModels.
std::vector<std::shared_ptr<SmallModel>> OtherModels(int count) {
  auto models = EqualModels(count);
  const at::NoGradGuard no_grad;
  for (const auto& model : models) {
    for (const at::Tensor& tensor : model->parameters()) tensor.fill_(9);
    for (const at::Tensor& tensor : model->buffers()) tensor.fill_(9);
  }
  return models;
}

double Deviation(SmallModel& found, SmallModel& expected) {
  double largest = 0;
  for (const auto& named : expected.named_parameters()) {
    const at::Tensor other = found.named_parameters()[named.key()];
    const double size = named.value().abs().max().clamp_min(1e-3).item<double>();
    largest = std::max(largest, (other - named.value()).abs().max().item<double>() / size);
  }
  return largest;
}

struct Engine {
  const char* name;
  TrainingSpec spec;
  double tolerance = 5e-6;  // of parameters after kSteps, if the number of ranks changes
  // If not 0: the tolerance if one rank continues, which trains differently with this engine.
  double alone = 0;
};
void PrintTo(const Engine& engine, std::ostream* out) { *out << engine.name; }

std::vector<Engine> Engines() {
  const auto with = [](const char* engine, const std::function<void(TrainingSpec&)>& change) {
    TrainingSpec spec;
    spec.engine = engine;
    spec.momentum = 0.9;
    change(spec);
    return spec;
  };
  const auto compressed = [&](const char* form, const char* engine = "native/ddp") {
    return with(engine, [&](TrainingSpec& spec) {
      spec.gradient_compression = form;
      spec.powersgd_rank = 1;
      spec.top_k_ratio = 0.05;
      spec.compression_start_step = 1;
    });
  };
  return {{"ddp", with("native/ddp", [](TrainingSpec&) {})},
          {"zero1", with("native/zero1", [](TrainingSpec&) {})},
          {"zero1_static_graph", with("native/zero1", [](TrainingSpec& spec) { spec.static_graph = true; })},
          {"zero2", with("native/zero2", [](TrainingSpec&) {})},
          {"zero3", with("native/zero3", [](TrainingSpec&) {})},
          {"local_sgd", with("native/local-sgd", [](TrainingSpec& spec) { spec.local_steps = 3; }), 2e-2},
          {"local_sgd_slow_momentum",
           with("native/local-sgd",
                [](TrainingSpec& spec) {
                  spec.local_steps = 3;
                  spec.local_start_step = 2;
                  spec.slow_momentum = 0.5;
                }),
           2e-2, 0.4},
          {"local_sgd_before_its_first_local_step",
           with("native/local-sgd", [](TrainingSpec& spec) { spec.local_start_step = 6; }), 2e-2},
          {"powersgd", compressed("powersgd"), 5e-2},
          {"top_k", compressed("top-k"), 0.1},
          {"onebit", compressed("onebit"), 5e-2},
          {"zero1_powersgd", compressed("powersgd", "native/zero1"), 5e-2},
          {"zero1_top_k", compressed("top-k", "native/zero1"), 0.1},
          {"parameter_server", with("native/parameter-server", [](TrainingSpec&) {})}};
}

class Continued : public testing::TestWithParam<Engine> {
 protected:
  const TrainingSpec& spec() const { return GetParam().spec; }

  // Trains without interruption. Returns what was stored after kBefore steps.
  Saved TrainWhole(const std::vector<std::shared_ptr<SmallModel>>& models) {
    Saved saved;
    OnRanksOrAlone(static_cast<int>(models.size()), [&](Communicator& c) {
      Rank rank(spec(), *models[c.rank()], c);
      rank.Train(0, kBefore);
      rank.Save(saved, kBefore);
      rank.Train(kBefore, kSteps);
      rank.EndEpoch();
    });
    return saved;
  }
};

TEST_P(Continued, OnAsManyRanksEndsWithTheSameParametersBitForBit) {
  for (const int ranks : {2, 4}) {
    const auto whole = EqualModels(ranks), models = OtherModels(ranks);
    const Saved saved = TrainWhole(whole);
    OnRanks(ranks, [&](Communicator& c) {
      Rank rank(spec(), *models[c.rank()], c, &saved);
      rank.Train(kBefore, kSteps);
      rank.EndEpoch();
    });
    for (int r = 0; r < ranks; ++r) {
      for (const auto& named : whole[r]->named_parameters())
        EXPECT_TRUE(models[r]->named_parameters()[named.key()].equal(named.value())) << named.key();
    }
  }
}

TEST_P(Continued, OnAnotherNumberOfRanksTrainsOn) {
  for (const auto& [from, to] : {std::pair(4, 2), {2, 4}, {2, 1}, {1, 2}, {4, 3}}) {
    const auto whole = EqualModels(from), models = OtherModels(to);
    const Saved saved = TrainWhole(whole);
    OnRanksOrAlone(to, [&](Communicator& c) {
      Rank rank(spec(), *models[c.rank()], c, &saved);
      rank.Train(kBefore, kSteps);
      rank.EndEpoch();
    });
    const double deviation = Deviation(*models[0], *whole[0]);
    std::printf("%s, continued on %d instead of %d ranks: largest deviation %.1e of a parameter's size\n",
                GetParam().name, to, from, deviation);
    EXPECT_LT(deviation, to == 1 && GetParam().alone > 0 ? GetParam().alone : GetParam().tolerance)
        << from << " to " << to;
    for (int r = 1; r < to; ++r) EXPECT_EQ(Deviation(*models[r], *models[0]), 0);
  }
}

// If the state is stored again directly after a change of the number of ranks, it has the same values.
TEST_P(Continued, OnMoreRanksAndBackKeepsAllValues) {
  const auto whole = EqualModels(2), four = OtherModels(4), two = OtherModels(2);
  const Saved saved = TrainWhole(whole);
  Saved between, back;
  OnRanks(4, [&](Communicator& c) {
    Rank rank(spec(), *four[c.rank()], c, &saved);
    rank.Save(between, kBefore);
  });
  OnRanks(2, [&](Communicator& c) {
    Rank rank(spec(), *two[c.rank()], c, &between);
    rank.Save(back, kBefore);
  });
  for (int r = 0; r < 2; ++r) {
    for (const auto& [name, tensor] : saved.of_ranks[r]) {
      if (name.starts_with("random/") || name == "meter" || name.starts_with("buffer/")) continue;
      const bool averaged = spec().engine == "native/local-sgd" || name.starts_with("strategy/reducer/");
      at::Tensor expected = tensor;
      if (averaged && expected.is_floating_point())
        expected = (tensor + Find(saved.of_ranks[1 - r], name)) / 2;
      EXPECT_TRUE(
          at::allclose(Find(back.of_ranks[r], name).to(at::kDouble), expected.to(at::kDouble), 1e-5, 1e-7))
          << name;
    }
  }
  for (const auto& [name, tensor] : saved.shared) EXPECT_TRUE(Find(back.shared, name).equal(tensor)) << name;
}

INSTANTIATE_TEST_SUITE_P(Engines, Continued, testing::ValuesIn(Engines()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RunState, OfRanksThatNeverCommunicateNeedsAsManyRanks) {
  TrainingSpec spec;
  spec.engine = "native/none";
  const auto models = EqualModels(3);
  Saved saved;
  OnRanks(2, [&](Communicator& c) { Rank(spec, *models[c.rank()], c).Save(saved, kBefore); });
  SoloCommunicator solo;
  try {
    const Rank alone(spec, *models[2], solo, &saved);
    FAIL() << "no error";
  } catch (const TrainerError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("use 2 ranks"));
  }
}

// With `last_batch: keep`, a last batch with fewer samples than ranks is dropped.
TEST(RunState, OfEpochsWithAnotherNumberOfStepsIsRefused) {
  TrainingSpec spec;
  spec.engine = "native/ddp";
  const auto models = EqualModels(2);
  Saved saved;
  OnRanks(2, [&](Communicator& c) { Rank(spec, *models[c.rank()], c).Save(saved, kBefore); });
  Find(saved.shared, "steps_per_epoch").add_(1);
  for (const int ranks : {1, 2}) {
    const auto other = EqualModels(ranks);
    OnRanksOrAlone(ranks, [&](Communicator& c) {
      try {
        const Rank rank(spec, *other[c.rank()], c, &saved);
        ADD_FAILURE() << "no error with " << ranks << " ranks";
      } catch (const TrainerError& error) {
        EXPECT_THAT(error.what(),
                    testing::HasSubstr("written with 22 steps per epoch, this run has 21: use 2 ranks"));
      }
    });
  }
  std::erase_if(saved.shared, [](const auto& named) { return named.first == "steps_per_epoch"; });
  OnRanks(2, [&](Communicator& c) { EXPECT_NO_THROW(Rank(spec, *models[c.rank()], c, &saved)); });
}

TEST(RunState, OfShardsInAnotherOrderIsRefused) {
  TrainingSpec spec;
  spec.engine = "native/zero1";
  const auto models = EqualModels(2), other = EqualModels(2);
  for (const auto& model : other) model->first.set_data(model->first.contiguous());
  Saved saved;
  OnRanks(2, [&](Communicator& c) { Rank(spec, *models[c.rank()], c).Save(saved, kBefore); });
  OnRanks(2, [&](Communicator& c) { EXPECT_THROW(Rank(spec, *other[c.rank()], c, &saved), TrainerError); });
  // With another number of ranks, the shards are joined, and their order does not matter.
  const auto alone = OtherModels(1);
  alone[0]->first.set_data(alone[0]->first.contiguous());
  SoloCommunicator solo;
  const Rank rank(spec, *alone[0], solo, &saved);
  EXPECT_TRUE(alone[0]->first.equal(models[0]->first));
}

}  // namespace
}  // namespace scalelab::trainer
