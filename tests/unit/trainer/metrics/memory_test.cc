// Tests the memory that ranks report: that of activations against a count by hand, all other memory against the formulas of the
// engines.
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tests/fakes/thread_communicator.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/metrics/kept_allocations.h"
#include "worker/trainer/models/divisible_model.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {
namespace {

constexpr int64_t kBatch = 24, kIn = 16, kHidden = 32, kOut = 48;
constexpr double kNumber = 4;          // bytes of a number in single precision
constexpr double kLoss = 2 * kNumber;  // the loss, and the number of samples by which it is divided
constexpr double kFirst = kIn * kHidden * kNumber,
                 kSecond = kHidden * kOut * kNumber;  // sizes of the weights
constexpr double kModel = kFirst + kSecond;

struct Linear : public torch::nn::Module {
  Linear(int64_t in, int64_t out) { weight = register_parameter("weight", 0.1 * at::randn({out, in})); }
  at::Tensor weight;
};

// One or two blocks of a linear layer and a ReLU.
class Layers : public DivisibleModel {
 public:
  explicit Layers(int count) {
    const int64_t widths[] = {kIn, kHidden, kOut};
    for (int i = 0; i < count; ++i) {
      const auto layer =
          register_module("layer" + std::to_string(i), std::make_shared<Linear>(widths[i], widths[i + 1]));
      AddBlock({layer},
               [layer = layer.get()](const at::Tensor& x) { return at::linear(x, layer->weight).relu(); });
    }
  }
  at::Tensor Example() const override { return at::zeros({1, kIn}); }
  std::vector<Division> Divisions() const override { return {}; }
};

using Values = std::map<std::string, double>;

// Trains for some steps and returns the memory of the rank.
Values Train(TrainingSpec spec, int layers, Model& model, Communicator& communicator, int steps = 3) {
  spec.global_batch = kBatch;
  spec.cycle_time_ms = 0;  // of native/horovod
  const auto strategy =
      MakeStrategy(spec, model, communicator, [&] { return std::make_shared<Layers>(layers); });
  TrainStep step(spec, Precision::kFp32, at::kCPU, model, *strategy, communicator);
  const DataSlice slice = strategy->SliceOf(communicator.rank(), communicator.size());
  const int64_t samples = slice.index < 0 ? 0 : kBatch / slice.count;
  for (int i = 0; i < steps; ++i) {
    StepRecord record{.global_samples = kBatch, .marks = StepMarks(at::kCPU)};
    step.Run({at::ones({samples, kIn}), at::zeros({samples}, at::kLong)}, 0.1, record);
  }
  strategy->EndEpoch();
  std::vector<Metric> metrics;
  step.AppendMemory(metrics);
  return {metrics.begin(), metrics.end()};
}

std::vector<Values> TrainOnRanks(const TrainingSpec& spec, int layers, int ranks) {
  at::manual_seed(5);
  std::vector<std::shared_ptr<Layers>> models;
  for (int r = 0; r < ranks; ++r) models.push_back(std::make_shared<Layers>(layers));
  std::vector<Values> values(ranks);
  if (ranks == 1) {
    SoloCommunicator solo;
    values[0] = Train(spec, layers, *models[0], solo);
    return values;
  }
  OnRanks(ranks, [&](ThreadCommunicator& rank) {
    values[rank.rank()] = Train(spec, layers, *models[rank.rank()], rank);
  });
  return values;
}

TrainingSpec Engine(const std::string& engine) {
  TrainingSpec spec;
  spec.engine = engine;
  return spec;
}

// Returns the bytes that forward of one layer keeps for `samples` samples. ReLU and log-softmax keep their outputs. The linear
// layer needs its input and its weight, which exist before forward. Nothing needs its output.
constexpr double OneLayer(int64_t samples) {
  const double relu = static_cast<double>(samples * kHidden) * kNumber, log_softmax = relu;
  return relu + log_softmax + kLoss;
}

TEST(ActivationMemory, IsThatOfACountByHandInEveryEngine) {
  EXPECT_EQ(TrainOnRanks(Engine("native/ddp"), 1, 1)[0].at("memory/activations_bytes"), OneLayer(kBatch));
  for (const char* engine : {"native/none", "native/ddp", "native/serial", "native/horovod", "native/zero1",
                             "native/zero2", "native/zero3", "native/local-sgd"}) {
    for (const Values& values : TrainOnRanks(Engine(engine), 1, 2))
      EXPECT_EQ(values.at("memory/activations_bytes"), OneLayer(kBatch / 2)) << engine;
  }
}

TEST(ActivationMemory, IsThatOfOneMicroBatch) {
  TrainingSpec spec = Engine("native/none");
  spec.accumulation_steps = 4;
  constexpr double kWeight = 32;  // at most: the weight of the part, and the product with the loss
  const double found = TrainOnRanks(spec, 1, 1)[0].at("memory/activations_bytes");
  EXPECT_GE(found, OneLayer(kBatch / 4));
  EXPECT_LE(found, OneLayer(kBatch / 4) + kWeight);
}

TEST(ActivationMemory, OfServersIsAbsent) {
  const std::vector<Values> values = TrainOnRanks(Engine("native/parameter-server"), 1, 3);
  EXPECT_EQ(values[0].at("memory/activations_bytes"), OneLayer(kBatch / 2));
  EXPECT_EQ(values[1].at("memory/activations_bytes"), OneLayer(kBatch / 2));
  EXPECT_FALSE(values[2].contains("memory/activations_bytes")) << "it does not train";
}

TEST(ActivationMemory, CountsAllReplicas) {
  TrainingSpec spec = Engine("native/data-parallel");
  spec.replicas = 2;
  constexpr double kGathered = kBatch * kHidden * kNumber;  // the outputs of both replicas
  EXPECT_EQ(TrainOnRanks(spec, 1, 1)[0].at("memory/activations_bytes"), OneLayer(kBatch) + kGathered);
}

// With gpipe a stage keeps activations of all parts, and with 1f1b of as many parts as there are stages from this one to the last.
TEST(ActivationMemory, OfAPipelineIsThatOfThePartsInFlight) {
  constexpr int kParts = 4;
  constexpr int64_t kSamples = kBatch / kParts;
  // The first stage keeps the output of its ReLU. The last stage keeps the outputs of ReLU and of log-softmax.
  constexpr double kOfFirst = kSamples * kHidden * kNumber, kOfLast = 2 * kSamples * kOut * kNumber + kLoss;
  constexpr double kWeight = 32;  // at most, of a part of the last stage
  for (const bool gpipe : {true, false}) {
    TrainingSpec spec = Engine("native/pipeline");
    spec.accumulation_steps = kParts;
    spec.pipeline_schedule = gpipe ? "gpipe" : "1f1b";
    const std::vector<Values> values = TrainOnRanks(spec, 2, 2);
    EXPECT_EQ(values[0].at("memory/activations_bytes"), (gpipe ? kParts : 2) * kOfFirst);
    const double last = values[1].at("memory/activations_bytes");
    EXPECT_GE(last, (gpipe ? kParts : 1) * kOfLast);
    EXPECT_LE(last, (gpipe ? kParts : 1) * (kOfLast + kWeight));
  }
}

TEST(ActivationMemory, IsAbsentBeforeTheSecondStep) {
  Layers model(1);
  SoloCommunicator solo;
  EXPECT_FALSE(Train(Engine("native/none"), 1, model, solo, 1).contains("memory/activations_bytes"));
  EXPECT_TRUE(Train(Engine("native/none"), 1, model, solo, 2).contains("memory/activations_bytes"));
}

TEST(KeptAllocations, CountsWhatIsAllocatedAndNotFreed) {
  at::Tensor excluded;
  const KeptAllocations allocations(at::kCPU);
  const at::Tensor kept = at::zeros({10});
  EXPECT_EQ(allocations.bytes(), 10 * kNumber);
  at::Tensor freed = at::zeros({20}), view = kept.narrow(0, 2, 3);
  EXPECT_EQ(allocations.bytes(), 30 * kNumber);
  freed.reset();
  EXPECT_EQ(allocations.bytes(), 10 * kNumber);
  {
    const UncountedAllocations uncounted;
    excluded = at::zeros({40});
  }
  EXPECT_EQ(allocations.bytes(), 10 * kNumber);
  const KeptAllocations of_gpu(at::kCUDA);
  const at::Tensor on_cpu = at::zeros({50});
  EXPECT_EQ(of_gpu.bytes(), 0) << "the tensor is on another device";
}

// The memory of parameters, gradients and optimizer.
struct Case {
  std::string name;
  TrainingSpec spec;
  int ranks;
  std::vector<ModelMemory> expected;  // of each rank, or of all ranks
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> Cases() {
  TrainingSpec momentum = Engine("native/local-sgd"), servers = Engine("native/parameter-server"),
               async = Engine("native/parameter-server"), replicas = Engine("native/data-parallel");
  momentum.slow_momentum = 0.5;
  momentum.local_steps = 2;
  servers.server_ranks = 2;
  async.consistency = "async";
  replicas.replicas = 2;
  const auto compressed = [](const char* engine, const char* form) {
    TrainingSpec spec = Engine(engine);
    spec.gradient_compression = form;
    return spec;
  };
  TrainingSpec not_yet = compressed("native/ddp", "top-k");
  not_yet.compression_start_step = 10;  // after the end of the run
  const ModelMemory whole{kModel, kModel, kModel}, with_errors{kModel, 2 * kModel, kModel};
  const double half = kModel / 2;
  return {{"one_rank", Engine("native/ddp"), 1, {whole}},
          {"none", Engine("native/none"), 2, {whole}},
          {"ddp", Engine("native/ddp"), 2, {whole}},
          {"ddp_bf16", compressed("native/ddp", "bf16"), 2, {whole}},
          {"powersgd", compressed("native/ddp", "powersgd"), 2, {with_errors}},
          {"top_k", compressed("native/ddp", "top-k"), 2, {with_errors}},
          {"top_k_not_yet", not_yet, 2, {whole}},
          {"onebit", compressed("native/serial", "onebit"), 2, {with_errors}},
          {"zero1_powersgd", compressed("native/zero1", "powersgd"), 2, {{kModel, 2 * kModel, half}}},
          {"serial", Engine("native/serial"), 2, {whole}},
          {"horovod", Engine("native/horovod"), 2, {whole}},
          {"zero1", Engine("native/zero1"), 2, {{kModel, kModel, half}}},
          {"zero2", Engine("native/zero2"), 2, {{kModel, half, half}}},
          {"zero3", Engine("native/zero3"), 2, {{half, half, half}}},
          {"local_sgd", Engine("native/local-sgd"), 2, {whole}},
          {"slow_momentum", momentum, 2, {{kModel, kModel, 3 * kModel}}},
          {"pipeline", Engine("native/pipeline"), 2, {{kModel, kFirst, kFirst}, {kModel, kSecond, kSecond}}},
          {"servers", servers, 3, {{kModel, kModel, 0}, {kModel, half, half}, {kModel, half, half}}},
          {"async_server", async, 2, {{kModel, kModel, 0}, whole}},
          {"replicas", replicas, 1, {{kModel, 2 * kModel, kModel}}}};
}

class Memory : public testing::TestWithParam<Case> {};

TEST_P(Memory, IsThatOfTheFormula) {
  const Case& c = GetParam();
  constexpr double kPadding = 64;  // and numbers that show which parameters have a gradient
  const std::vector<Values> values = TrainOnRanks(c.spec, 2, c.ranks);
  for (int r = 0; r < c.ranks; ++r) {
    const ModelMemory& expected = c.expected[c.expected.size() > 1 ? r : 0];
    EXPECT_EQ(values[r].at("memory/parameters_ideal_bytes"), expected.parameters) << "rank " << r;
    EXPECT_EQ(values[r].at("memory/gradients_ideal_bytes"), expected.gradients) << "rank " << r;
    EXPECT_EQ(values[r].at("memory/optimizer_ideal_bytes"), expected.optimizer) << "rank " << r;
    EXPECT_NEAR(values[r].at("memory/parameters_bytes"), expected.parameters, kPadding) << "rank " << r;
    EXPECT_NEAR(values[r].at("memory/gradients_bytes"), expected.gradients, kPadding) << "rank " << r;
    EXPECT_NEAR(values[r].at("memory/optimizer_bytes"), expected.optimizer, kPadding) << "rank " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(OfEveryEngine, Memory, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace scalelab::trainer
