// Compares the kernels for GPUs with the same arithmetic on the CPU, which gpu_kernels_test.cc compares with
// LibTorch. Skips without a GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/fakes/host_kernels.h"
#include "tests/unit/trainer/gpu/gpu_norm_cases.h"
#include "worker/trainer/data/train_loader.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/device/step_graph.h"
#include "worker/trainer/models/fused_norm.h"
#include "worker/trainer/optim/sgd.h"

namespace scalelab::trainer {
namespace {

class CudaKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (VisibleGpus() == 0) GTEST_SKIP() << "needs a GPU and a build with CUDA; this process sees no GPU";
    if (!ExecutesKernels(gpu_)) GTEST_SKIP() << "needs a GPU of compute capability 8.0 or later";
  }
  const at::Device gpu_{at::kCUDA, 0};
};

TEST_F(CudaKernels, NormalizeAsTheCpuDoesAndTwiceTheSame) {
  static constexpr GpuNormKernels kHostNorm = {HostNormForward, HostNormBackward};
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const double rounding = type == at::kFloat ? 1e-5 : type == at::kHalf ? 1e-3 : 8e-3;
    for (int options = 0; options < 8; ++options) {
      for (const std::vector<int64_t>& shape : kNormShapes) {
        const NormCase norm = {type, (options & 1) != 0, (options & 2) != 0, (options & 4) != 0, shape};
        const NormInputs inputs = MakeNormInputs(norm);
        const auto on_gpu = [&](const at::Tensor& x, const at::Tensor& residual, const NormState& state) {
          EXPECT_TRUE(CanFuseNorm(x));
          return FusedNorm(x, residual, state, norm.batch_statistics, norm.relu);
        };
        const NormResults actual = RunNorm(inputs, gpu_, on_gpu), again = RunNorm(inputs, gpu_, on_gpu);
        const NormResults expected = RunNorm(
            inputs, at::kCPU, [&](const at::Tensor& x, const at::Tensor& residual, const NormState& state) {
              return GpuNorm(x, residual, state, norm.batch_statistics, norm.relu, kHostNorm);
            });
        for (size_t i = 0; i < actual.size(); ++i) {
          const double absolute = rounding * std::max(1.0, expected[i].abs().max().item<double>());
          EXPECT_TRUE(
              at::allclose(actual[i].to(at::kDouble), expected[i].to(at::kDouble), rounding, absolute))
              << type << " options " << options << " channels " << shape[1] << " result " << i;
          EXPECT_TRUE(actual[i].equal(again[i]));
        }
      }
    }
  }
}

TEST_F(CudaKernels, TakeTheOptimizerStepsOfTheCpuInAGraphToo) {
  // There are more tensors than one launch can have, and some begin at odd addresses.
  const auto make = [&](at::Device device) {
    at::manual_seed(1);
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 200; ++i) {
      const at::Tensor whole = at::randn({1 + 97 * i}).to(device);
      parameters.push_back(whole.narrow(0, i % 2, whole.numel() - i % 2).set_requires_grad(true));
      parameters.back().mutable_grad() = at::randn({parameters.back().numel()}).to(device);
    }
    return parameters;
  };
  for (const double momentum : {0.0, 0.9}) {
    std::vector<at::Tensor> there = make(gpu_), here = make(at::kCPU);
    Sgd sgd(there, momentum, 0.01, true, true), reference(here, momentum, 0.01, true, true, HostSgd);
    const at::Tensor left_out = at::zeros({1}, gpu_);
    const DeviceStream stream(gpu_);
    const StreamScope scope(stream);
    sgd.Apply(left_out);  // the rate is 0
    reference.Apply(at::zeros({1}));
    StepGraph graph([&] { sgd.Apply(left_out); });
    for (int step = 0; step < 3; ++step) {
      left_out.fill_(step == 1 ? 1 : 0);
      sgd.SetRate(0.1), reference.SetRate(0.1);
      graph.Replay();
      reference.Apply(at::full({1}, step == 1 ? 1.0f : 0.0f));
    }
    for (size_t i = 0; i < here.size(); ++i) {
      EXPECT_TRUE(at::allclose(there[i].detach().cpu(), here[i].detach(), 1e-6, 1e-7)) << i;
    }
  }
}

TEST_F(CudaKernels, WriteRoundedCopiesOfTheNewParameters) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    for (const int64_t n : {int64_t{1}, int64_t{1003}, int64_t{20'000}}) {
      const at::Tensor p = at::randn({n}, gpu_), v = at::randn({n}, gpu_), g = at::randn({n}, gpu_);
      const at::Tensor rate = at::full({}, 0.1f, gpu_),
                       copy = at::zeros({n}, at::TensorOptions(gpu_).dtype(type));
      const at::Tensor before = p.clone();
#ifdef SCALELAB_CUDA
      const GpuSgdTensor tensor{
          p.data_ptr<float>(), v.data_ptr<float>(), g.data_ptr<float>(), copy.data_ptr(), n, 0.01f};
      GpuSgd(&tensor, 1,
             {.momentum = 0.9f,
              .rate = rate.data_ptr<float>(),
              .copies = type == at::kHalf ? GpuNumber::kHalf : GpuNumber::kBFloat16},
             CurrentStream(gpu_));
#endif
      EXPECT_FALSE(p.equal(before));
      EXPECT_TRUE(copy.equal(p.to(type)));
    }
  }
}

TEST_F(CudaKernels, ConvertTheImagesOfTheCpu) {
  TrainingSpec spec;
  spec.dataset = "synthetic";
  spec.train_samples = 40;
  const Dataset data = LoadDataset(spec);
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) {
      TrainLoader::Options options{
          .batch_per_rank = 16, .total_steps = 4, .augment = true, .seed = 9, .format = format, .type = type};
      const ShardedSampler sampler(data.train.size, 16, 0, 1, 9);
      TrainLoader here(data.train, sampler, options);
      options.device = gpu_;
      TrainLoader there(data.train, sampler, options);
      for (int step = 0; step < 4; ++step) {
        const Batch &expected = here.Next(), &actual = there.Next();
        EXPECT_EQ(actual.images.scalar_type(), type);
        EXPECT_TRUE(at::allclose(actual.images.cpu(), expected.images.to(type), 1e-6, 1e-6)) << step;
        EXPECT_TRUE(actual.labels.cpu().equal(expected.labels));
      }
    }
  }
}

}  // namespace
}  // namespace scalelab::trainer
