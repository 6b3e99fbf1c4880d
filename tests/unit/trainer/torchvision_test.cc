// Compares every model with another implementation that has the same weights: torchvision's, or a few lines
// of PyTorch for the CIFAR ResNets and GPT (torchvision_reference.py). Files pass weights and images to the script
// and the logits back.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/init.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "catalog/models.h"
#include "worker/trainer/checkpoint/parameters.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

constexpr double kTolerance = 1e-4;  // relative to the largest logit
constexpr int kClasses = 17, kImages = 3,
              kLacking = 77;  // exit status of the script if an import fails

// Replaces the parameters and the statistics of normalizations by random values. The scale of the weights keeps
// activations bounded. No normalization is the identity, so the test fails if a normalization is missing or has
// the values of another one.
void Randomise(Model& model) {
  const at::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    at::Tensor& value = item.value();
    if (value.dim() > 1) {
      torch::nn::init::kaiming_normal_(value, 0.0, torch::kFanIn, torch::kReLU);
    } else {
      value.uniform_(item.key().ends_with("weight") ? 0.5 : -0.3, item.key().ends_with("weight") ? 1 : 0.3);
    }
  }
  for (auto& item : model.named_buffers()) {
    const bool variance = item.key().ends_with("running_var");
    item.value().uniform_(variance ? 0.5 : -0.3, variance ? 2 : 0.3);
  }
}

NamedTensors Load(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return ReadSafetensors(text.str(), path);
}

// The running script. One process serves all models, because importing PyTorch takes seconds.
class Reference {
 public:
  Reference() : dir_(testing::TempDir() + "/torchvision-" + std::to_string(getpid())) {
    std::filesystem::create_directories(dir_);
    int ask[2], answer[2];
    if (pipe2(ask, O_CLOEXEC) != 0 || pipe2(answer, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ask[0], STDIN_FILENO);
      dup2(answer[1], STDOUT_FILENO);
      execl(PYTHON, PYTHON, SCRIPT, std::to_string(kClasses).c_str(), dir_.c_str(), nullptr);
      _exit(127);
    }
    close(ask[0]);
    close(answer[1]);
    ask_ = fdopen(ask[1], "w");
    answer_ = fdopen(answer[0], "r");
  }
  ~Reference() {
    std::fclose(ask_);
    std::fclose(answer_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    std::filesystem::remove_all(dir_);
  }

  // Computes the logits of a model from the files in dir(). Returns 0 or the exit status of the script.
  int Compute(const std::string& model) {
    std::fprintf(ask_, "%s\n", model.c_str());
    std::fflush(ask_);
    char line[16];
    if (std::fgets(line, sizeof line, answer_) != nullptr) return 0;
    if (pid_ > 0) waitpid(std::exchange(pid_, 0), &status_, 0);
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  const std::string& dir() const { return dir_; }

 private:
  const std::string dir_;
  pid_t pid_;
  int status_ = 0;  // exit status, after the script has ended
  FILE *ask_, *answer_;
};

class SameAs : public testing::TestWithParam<ModelInfo> {
 protected:
  static void SetUpTestSuite() {
    signal(SIGPIPE, SIG_IGN);  // writing to a script that has ended must not end this process
    reference_ = std::make_unique<Reference>();
  }
  static void TearDownTestSuite() { reference_.reset(); }
  static std::unique_ptr<Reference> reference_;
};
std::unique_ptr<Reference> SameAs::reference_;

TEST_P(SameAs, PyTorchsNetworkFromTheSameWeights) {
  const std::string name(GetParam().name), dir = reference_->dir();
  const bool cifar =
      name.ends_with("20") || name.ends_with("32") || name.ends_with("44") || name.ends_with("56");
  const int side = cifar ? 32 : std::max(96, GetParam().smallest_image);
  at::manual_seed(1);
  const auto model = MakeModel(name, kClasses, {BatchNormMode::kEval, nullptr});
  Randomise(*model);
  const int tokens = std::min(GetParam().context, 256);
  const at::Tensor images =
      tokens > 0 ? at::randint(kClasses, {kImages, tokens}, at::kLong) : at::randn({kImages, 3, side, side});
  SaveSafetensors(ParametersAndBuffers(*model), dir + "/weights");
  SaveSafetensors({{"images", images.to(at::kFloat)}}, dir + "/images");
  const int status = reference_->Compute(name);
  if (status == kLacking)
    GTEST_SKIP()
        << "needs Debian's python3-torch and python3-torchvision (deploy/setup --frameworks installs them)";
  ASSERT_EQ(status, 0) << name;

  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  const at::Tensor input = tokens > 0 ? images : images.contiguous(at::MemoryFormat::ChannelsLast);
  for (const auto& [kind, expected] : Load(dir + "/logits")) {
    at::Tensor found;
    if (kind == "auxiliary") {
      model->train();
      found = model->ForwardTraining(input).auxiliary;
    } else {
      model->eval();
      found = model->forward(input);
    }
    ASSERT_EQ(found.sizes(), expected.sizes());
    EXPECT_GT(expected.std().item<double>(), 1e-3) << "or the comparison says little";
    const double deviation = ((found - expected).abs().max() / expected.abs().max()).item<double>();
    std::printf("%s: %s deviate by %.1e of the largest\n", name.c_str(), kind.c_str(), deviation);
    EXPECT_LT(deviation, kTolerance) << kind;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SameAs, testing::ValuesIn(Models()), [](const auto& info) {
  std::string name(info.param.name);
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace scalelab::trainer
