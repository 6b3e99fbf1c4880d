// Tests that every synchronous engine computes the same training as one rank, over real backends: 2 and 4
// ranks, with and without accumulation, with a smaller last batch and with parameters that get no gradient.
// Runs under mpirun on 4 ranks; every process runs all tests in the same order. Losses and parameters are
// compared after 21 steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <ostream>

#include "tests/unit/trainer/small_model.h"
#include "worker/trainer/backends/communicators.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/models/divisible_model.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {
namespace {

constexpr int64_t kSamples = 31, kGlobalBatch = 12, kEpochs = 7;  // batches of 12, 12 and 7 samples
constexpr double kTolerance = 5e-6;                               // only the order of additions differs
constexpr int64_t kWidth = 6, kHidden = 8, kClasses = 4;

// Two linear layers, whose hidden units tensor parallelism divides, and a parameter that is never used.
struct Perceptron : public torch::nn::Module {
  explicit Perceptron(LayerRanks& ranks) : ranks(ranks) {
    first = register_parameter("first", 0.5 * at::randn({kHidden, kWidth}));
    unused = register_parameter("unused", at::randn({5}));
    second = register_parameter("second", 0.5 * at::randn({kWidth, kHidden}));
  }
  at::Tensor Run(const at::Tensor& x) const {
    const at::Tensor hidden = at::linear(ranks.SumGradients(x), first).tanh();
    return x + ranks.Sum(at::linear(hidden, second));
  }
  LayerRanks& ranks;
  at::Tensor first, unused, second;
};

struct Head : public torch::nn::Module {
  Head() { weight = register_parameter("weight", 0.5 * at::randn({kClasses, kWidth})); }
  at::Tensor weight;
};

class Perceptrons : public DivisibleModel {
 public:
  Perceptrons() {
    for (int i = 0; i < 3; ++i) {
      const auto layer =
          register_module("layer" + std::to_string(i), std::make_shared<Perceptron>(layer_ranks()));
      divisions_.push_back({.parameter = layer->first, .dim = 0, .units = kHidden, .unit = "units"});
      divisions_.push_back({.parameter = layer->second, .dim = 1, .units = kHidden, .unit = "units"});
      AddBlock({layer}, [layer = layer.get()](const at::Tensor& x) { return layer->Run(x); });
    }
    const auto head = register_module("head", std::make_shared<Head>());
    AddBlock({head}, [head = head.get()](const at::Tensor& x) { return at::linear(x, head->weight); });
  }
  at::Tensor Example() const override { return at::zeros({1, kWidth}); }
  std::vector<Division> Divisions() const override { return divisions_; }

 private:
  std::vector<Division> divisions_;
};

struct Engine {
  const char* name;
  const char* engine;
  bool divides = false;    // the model is Perceptrons
  int64_t divided_by = 0;  // stages or tensor_ranks; 0: all ranks
};

constexpr Engine kEngines[] = {{"ddp", "native/ddp"},
                               {"serial", "native/serial"},
                               {"horovod", "native/horovod"},
                               {"zero1", "native/zero1"},
                               {"zero2", "native/zero2"},
                               {"zero3", "native/zero3"},
                               {"parameter_server", "native/parameter-server"},
                               {"pipeline", "native/pipeline", true},
                               {"pipeline_x_data", "native/pipeline", true, 2},
                               {"tensor", "native/tensor", true},
                               {"tensor_x_data", "native/tensor", true, 2}};

struct Case {
  Engine engine;
  std::string backend;
  int ranks;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.engine.name; }

std::shared_ptr<Communicator> of_run[2];  // by backend: mpi, gloo

std::vector<Case> Cases() {
  std::vector<Case> cases;
#ifdef SCALELAB_GLOO
  const std::vector<std::string> backends = {"mpi", "gloo"};
#else
  const std::vector<std::string> backends = {"mpi"};
#endif
  for (const std::string& backend : backends) {
    for (const int ranks : {2, 4}) {
      for (const Engine& engine : kEngines) {
        if (engine.divided_by < ranks) cases.push_back({engine, backend, ranks});
      }
    }
  }
  return cases;
}

std::shared_ptr<Model> NewModel(const Engine& engine) {
  at::manual_seed(5);
  if (engine.divides) return std::make_shared<Perceptrons>();
  return std::make_shared<SmallModel>();
}

Batch BatchOf(const Engine& engine, const std::vector<int64_t>& samples) {
  static const at::Tensor rows = [] {
    at::manual_seed(78);
    return at::randn({kSamples, kWidth});
  }();
  const at::Tensor index = at::tensor(samples, at::kLong);
  return {(engine.divides ? rows : Images(0, kSamples)).index_select(0, index), index.remainder(kClasses)};
}

// Trains the model and returns the mean loss of each epoch over the samples of all ranks.
std::vector<double> Train(const Engine& engine, TrainingSpec spec, Model& model, Communicator& communicator) {
  spec.global_batch = kGlobalBatch;
  spec.momentum = 0.9;
  spec.weight_decay = 1e-2;  // weight decay must not change a parameter without a gradient
  const auto strategy = MakeStrategy(spec, model, communicator);
  TrainStep step(spec, Precision::kFp32, at::kCPU, model, *strategy, communicator);
  const DataSlice slice = strategy->SliceOf(communicator.rank(), communicator.size());
  ShardedSampler sampler(kSamples, kGlobalBatch, slice.index, slice.count, 3, LastBatch::kKeep);
  std::vector<double> losses;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.StartEpoch(epoch);
    const at::Tensor sums = at::zeros({2}, at::kDouble);  // losses and samples
    for (int64_t s = 0; s < sampler.steps_per_epoch(); ++s) {
      std::vector<int64_t> mine;
      if (slice.index >= 0) mine.assign(sampler.Slice(s).begin(), sampler.Slice(s).end());
      StepRecord record{.global_samples = sampler.GlobalBatch(s), .marks = StepMarks(at::kCPU)};
      step.Run(BatchOf(engine, mine), 0.05, record);
      if (mine.empty()) continue;
      const auto count = static_cast<double>(mine.size());
      sums[0] += record.numbers[kLoss].item<double>() * count;
      sums[1] += count;
    }
    strategy->EndEpoch();
    communicator.AllReduce(sums, ReduceOp::kSum);
    losses.push_back((sums[0] / sums[1]).item<double>());
  }
  return losses;
}

// The same training on one rank, once for each model.
struct Alone {
  std::shared_ptr<Model> model;
  std::vector<double> losses;
};
const Alone& TrainedAlone(const Engine& engine) {
  static Alone alone[2];
  Alone& result = alone[engine.divides ? 1 : 0];
  if (result.model == nullptr) {
    SoloCommunicator solo;
    result.model = NewModel(engine);
    result.losses = Train(engine, {}, *result.model, solo);
  }
  return result;
}

class Parity : public testing::TestWithParam<Case> {};

TEST_P(Parity, WithOneRank) {
  const auto& [engine, backend, ranks] = GetParam();
  const Alone& alone = TrainedAlone(engine);
  ASSERT_LT(alone.losses.back(), 0.95 * alone.losses.front())
      << "it should learn, or the comparison says little";
  Communicator& all = *of_run[backend == "gloo" ? 1 : 0];
  const std::unique_ptr<Communicator> half = ranks == 2 ? all.Split(all.rank() / 2) : nullptr;
  Communicator& communicator = half ? *half : all;
  for (const int parts : {1, 3}) {
    TrainingSpec spec;
    spec.engine = engine.engine;
    spec.accumulation_steps = parts;
    spec.pipeline_stages = spec.tensor_ranks = engine.divided_by;
    spec.cycle_time_ms = 0;  // of native/horovod
    const std::shared_ptr<Model> model = NewModel(engine), start = NewModel(engine);
    if (communicator.rank() > 0) {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model->parameters()) parameter.zero_();  // rank 0's count
    }
    const std::vector<double> losses = Train(engine, spec, *model, communicator);
    for (size_t epoch = 0; epoch < alone.losses.size(); ++epoch)
      EXPECT_NEAR(losses[epoch] / alone.losses[epoch], 1, 1e-5) << "epoch " << epoch << ", parts " << parts;
    double largest = 0;
    int unused = 0;
    for (const auto& named : alone.model->named_parameters()) {
      const at::Tensor found = model->named_parameters()[named.key()];
      const double size = named.value().abs().max().clamp_min(1e-3).item<double>();
      const double deviation = (found - named.value()).abs().max().item<double>() / size;
      EXPECT_LT(deviation, kTolerance) << named.key() << ", parts " << parts;
      largest = std::max(largest, deviation);
      if (!named.key().ends_with("unused")) continue;
      ++unused;
      EXPECT_TRUE(found.equal(start->named_parameters()[named.key()])) << named.key() << ", parts " << parts;
    }
    EXPECT_GT(unused, 0);
    if (all.rank() == 0) {
      std::printf("%s over %s, %d ranks, %d parts: largest deviation %.1e of a parameter's size\n",
                  engine.name, backend.c_str(), ranks, parts, largest);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, Parity, testing::ValuesIn(Cases()), [](const auto& info) {
  return std::string(info.param.engine.name) + "_" + info.param.backend + "_" +
         std::to_string(info.param.ranks) + "_ranks";
});

}  // namespace

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  LaunchEnvironment environment;
  if (const char* rank = std::getenv("OMPI_COMM_WORLD_RANK")) environment.rank = std::atoi(rank);
  TrainingSpec spec;
  spec.ranks = 4;
  spec.backend = "mpi";
  of_run[0] = MakeCommunicator(spec, environment, at::kCPU);
#ifdef SCALELAB_GLOO
  spec.backend = "gloo";
  of_run[1] = MakeCommunicator(spec, environment, at::kCPU);
#endif
  const int result = RUN_ALL_TESTS();
  of_run[1].reset();
  of_run[0].reset();
  return result;
}

}  // namespace scalelab::trainer

int main(int argc, char** argv) { return scalelab::trainer::Main(argc, argv); }
