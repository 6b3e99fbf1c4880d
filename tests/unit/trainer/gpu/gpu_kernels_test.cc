// Compares the arithmetic of the kernels for GPUs with LibTorch's operators, on a CPU. cuda_kernels_test.cc compares the kernels with
// the same loops on a GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/fakes/host_kernels.h"
#include "tests/unit/trainer/gpu/gpu_norm_cases.h"
#include "worker/trainer/data/train_loader.h"
#include "worker/trainer/models/convolution.h"
#include "worker/trainer/models/gpu_norm.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/models/weight_copies.h"
#include "worker/trainer/optim/sgd.h"
#include "worker/trainer/precision.h"

namespace scalelab::trainer {
namespace {

constexpr GpuNormKernels kHostNorm = {HostNormForward, HostNormBackward};

NormInputs InDouble(const NormInputs& inputs) {
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
  NormInputs result = inputs;
  result.x = wide(inputs.x), result.residual = wide(inputs.residual), result.dy = wide(inputs.dy);
  for (at::Tensor* tensor :
       {&result.state.weight, &result.state.bias, &result.state.running_mean, &result.state.running_var}) {
    *tensor = wide(*tensor);
  }
  return result;
}

// Returns the results of LibTorch's operators in double precision.
NormResults Reference(const NormInputs& inputs, bool batch_statistics, bool relu) {
  return RunNorm(InDouble(inputs), at::kCPU,
                 [&](const at::Tensor& x, const at::Tensor& residual, const NormState& state) {
                   at::Tensor y =
                       at::batch_norm(x, state.weight, state.bias, state.running_mean, state.running_var,
                                      batch_statistics, state.momentum, state.epsilon, false);
                   if (residual.defined()) y = y + residual;
                   return relu ? y.relu() : y;
                 });
}

NormResults OnHost(const NormInputs& inputs, bool batch_statistics, bool relu) {
  return RunNorm(inputs, at::kCPU,
                 [&](const at::Tensor& x, const at::Tensor& residual, const NormState& state) {
                   EXPECT_TRUE(GpuNormSupports(x));
                   return GpuNorm(x, residual, state, batch_statistics, relu, kHostNorm);
                 });
}

TEST(GpuNorm, AgreesWithSeparateOperationsInDoublePrecision) {
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    // Results of the tensors' type are rounded to this type; sums are not.
    const double rounding = type == at::kFloat ? 1e-5 : type == at::kHalf ? 1e-3 : 8e-3;
    for (int options = 0; options < 8; ++options) {
      for (const std::vector<int64_t>& shape : kNormShapes) {
        const NormCase norm = {type, (options & 1) != 0, (options & 2) != 0, (options & 4) != 0, shape};
        const NormInputs inputs = MakeNormInputs(norm);
        const NormResults actual = OnHost(inputs, norm.batch_statistics, norm.relu);
        const NormResults expected = Reference(inputs, norm.batch_statistics, norm.relu);
        ASSERT_EQ(actual.size(), expected.size());
        for (size_t i = 0; i < actual.size(); ++i) {
          const bool rounded = i == 0 || i == 3 || i == 6;
          const double tolerance = rounded ? rounding : 2e-5;
          EXPECT_EQ(actual[i].scalar_type(), rounded ? type : at::kFloat);
          // Gradients of the parameters are sums of numbers of both signs, so their errors are proportional to the largest.
          const double absolute = tolerance * std::max(1.0, expected[i].abs().max().item<double>());
          EXPECT_TRUE(at::allclose(actual[i].to(at::kDouble), expected[i], tolerance, absolute))
              << type << " options " << options << " channels " << shape[1] << " result " << i;
        }
      }
    }
  }
}

TEST(GpuNorm, KeepsThePrecisionOfTheVarianceFarFromZeroAndWithOutliers) {
  NormInputs inputs = MakeNormInputs({.shape = {9, 8, 32, 32}});
  inputs.x = (inputs.x + 5000).contiguous(at::MemoryFormat::ChannelsLast);
  inputs.x[0].select(1, 0).select(1, 0).fill_(20000);  // the first row, which the kernel subtracts as a shift
  const NormResults actual = OnHost(inputs, true, false), expected = Reference(inputs, true, false);
  EXPECT_TRUE(at::allclose(actual[1].to(at::kDouble), expected[1], 1e-6, 0));
  EXPECT_TRUE(at::allclose(actual[2].to(at::kDouble), expected[2], 1e-5, 0));
}

TEST(GpuNorm, LetsNaNThroughSoThatDivergenceIsSeen) {
  NormInputs inputs = MakeNormInputs({});
  inputs.x.fill_(std::nanf(""));
  EXPECT_TRUE(OnHost(inputs, true, true)[0].isnan().all().item<bool>());
}

TEST(GpuNorm, IsNotForOtherLayoutsTypesAndNumbersOfChannels) {
  const auto last = at::MemoryFormat::ChannelsLast;
  EXPECT_TRUE(GpuNormSupports(at::ones({2, 8, 3, 3}).contiguous(last)));
  EXPECT_FALSE(GpuNormSupports(at::ones({2, 8, 3, 3})));
  EXPECT_FALSE(GpuNormSupports(at::ones({2, 12, 3, 3}).contiguous(last)));
  EXPECT_FALSE(GpuNormSupports(at::ones({2, 8, 3, 3}, at::kDouble).contiguous(last)));
  EXPECT_FALSE(GpuNormSupports(at::ones({2, 8, 3, 3}).contiguous(last).narrow(1, 0, 4)));
}

std::vector<at::Tensor> Parameters() {
  at::manual_seed(1);
  return {at::randn({40, 30}).set_requires_grad(true), at::randn({4}).set_requires_grad(true),
          at::randn({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true)};
}

void SetGradients(const std::vector<at::Tensor>& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::manual_seed(10 * step + static_cast<int>(i));
    parameters[i].mutable_grad() = at::randn_like(parameters[i]).detach();
  }
}

TEST(GpuSgd, TakesTheStepsOfTheCpu) {
  for (const double momentum : {0.0, 0.9}) {
    std::vector<at::Tensor> ours = Parameters(), theirs = Parameters();
    Sgd sgd(ours, momentum, 0.01, false, true, HostSgd), reference(theirs, momentum, 0.01, false);
    for (int step = 0; step < 5; ++step) {
      SetGradients(ours, step), SetGradients(theirs, step);
      if (step == 2) ours[1].mutable_grad() = theirs[1].mutable_grad() = at::Tensor();
      sgd.Step(0.1), reference.Step(0.1);
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-6, 1e-7)) << step;
    }
  }
}

TEST(GpuSgd, ChangesNothingInAStepThatIsLeftOut) {
  std::vector<at::Tensor> parameters = Parameters();
  const at::Tensor before = parameters[0].detach().clone();
  Sgd sgd(parameters, 0.9, 0.01, true, true, HostSgd);
  SetGradients(parameters, 0);
  sgd.SetRate(0.1);
  sgd.Apply(at::ones({1}));
  EXPECT_TRUE(parameters[0].equal(before));
  EXPECT_TRUE(sgd.State()[0].second.equal(at::zeros({40, 30})));
  sgd.Apply(at::zeros({1}));
  EXPECT_FALSE(parameters[0].equal(before));
}

TEST(GpuSgd, WritesRoundedCopiesOfTheNewParameters) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    at::manual_seed(1);
    const at::Tensor p = at::randn({100}), v = at::randn({100}), g = at::randn({100}),
                     rate = at::full({}, 0.1f);
    const at::Tensor velocity = 0.9 * v + (g + 0.01 * p), expected = p - 0.1 * velocity;
    const at::Tensor copy = at::zeros({100}, type);
    const GpuSgdTensor tensor{
        p.data_ptr<float>(), v.data_ptr<float>(), g.data_ptr<float>(), copy.data_ptr(), 100, 0.01f};
    HostSgd(&tensor, 1,
            {.momentum = 0.9f,
             .rate = rate.data_ptr<float>(),
             .copies = type == at::kHalf ? GpuNumber::kHalf : GpuNumber::kBFloat16},
            nullptr);
    EXPECT_TRUE(at::allclose(p, expected, 1e-6, 1e-6));
    EXPECT_TRUE(at::allclose(v, velocity, 1e-6, 1e-6));
    EXPECT_TRUE(copy.equal(p.to(type)));
  }
}

TEST(WeightCopies, TrainAsWeightsThatAreConvertedInEveryStep) {
  std::vector<at::Tensor> results[2];
  for (const bool with_copies : {false, true}) {
    at::manual_seed(3);
    const std::shared_ptr<Model> model = MakeModel("resnet8", 10, {});
    for (at::Tensor& p : model->parameters()) {
      if (p.dim() == 4) p.set_data(p.contiguous(at::MemoryFormat::ChannelsLast));
    }
    const at::Tensor images = at::randn({4, 3, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast);
    Sgd sgd(model->parameters(), 0.9, 0.01, true, true, HostSgd);
    WeightCopies copies(model->parameters(), at::kBFloat16);
    if (with_copies) sgd.WriteCopies([&](const at::Tensor& weight) { return copies.Of(weight); });
    for (int step = 0; step < 3; ++step) {
      for (const at::Tensor& p : model->parameters()) p.mutable_grad() = at::Tensor();
      at::Tensor logits;
      {
        const PrecisionScope precision(Precision::kAmpBf16, at::kCPU);
        const WeightCopies::Scope scope(with_copies ? &copies : nullptr);
        logits = model->forward(images);
      }
      logits.to(at::kFloat).square().mean().backward();
      sgd.Step(0.1);
    }
    for (const at::Tensor& p : model->parameters()) {
      results[with_copies].push_back(p.detach().clone());
      if (with_copies && p.dim() == 4) {
        EXPECT_TRUE(copies.Of(p).equal(p.detach().to(at::kBFloat16)));
      }
    }
  }
  for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(results[0][i].equal(results[1][i])) << i;
}

TEST(WeightCopies, AreUsedInTheirScopeOnly) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(8, 8, 3).padding(1).bias(false));
  WeightCopies copies({conv->weight}, at::kBFloat16);
  copies.Of(conv->weight).zero_();
  const at::Tensor x = at::randn({1, 8, 4, 4});
  const PrecisionScope precision(Precision::kAmpBf16, at::kCPU);
  {
    const WeightCopies::Scope scope(&copies);
    EXPECT_EQ(Convolve(conv, x).abs().sum().item<float>(), 0);
  }
  EXPECT_GT(Convolve(conv, x).abs().sum().item<float>(), 0);
  copies.Refresh();
  EXPECT_TRUE(copies.Of(conv->weight).equal(conv->weight.detach().to(at::kBFloat16)));
  EXPECT_FALSE(copies.Of(at::ones({2})).defined());
}

// A loader that converts bytes must return the same batches as a loader that loads numbers.
TEST(GpuImages, AreTheImagesOfTheCpu) {
  TrainingSpec spec;
  spec.dataset = "synthetic";
  spec.train_samples = 40;
  const Dataset data = LoadDataset(spec);
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    for (const bool augment : {false, true}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const TrainLoader::Options options{.batch_per_rank = 16,
                                           .total_steps = 4,
                                           .augment = augment,
                                           .seed = 9,
                                           .format = format,
                                           .type = type};
        TrainLoader::Options converting = options;
        converting.image_kernel = HostImages;
        const ShardedSampler sampler(data.train.size, 16, 0, 1, 9);
        TrainLoader numbers(data.train, sampler, options), bytes(data.train, sampler, converting);
        for (int step = 0; step < 4; ++step) {
          const Batch &expected = numbers.Next(), &actual = bytes.Next();
          EXPECT_EQ(actual.images.scalar_type(), type);
          EXPECT_EQ(actual.images.strides(), expected.images.strides());
          EXPECT_TRUE(actual.images.equal(expected.images.to(type))) << step;
          EXPECT_TRUE(actual.labels.equal(expected.labels));
        }
      }
    }
  }
}

}  // namespace
}  // namespace scalelab::trainer
