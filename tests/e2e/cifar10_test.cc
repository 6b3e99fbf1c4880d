// Trains on the complete CIFAR-10 data set, where it is available: a third of an epoch of resnet8, or a whole
// one of resnet20 with SCALELAB_LONG_TESTS.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

// Returns the directory with the official files, compressed with xz; empty if there is none.
std::string PackedCifar10() {
  const char* named = std::getenv("SCALELAB_CIFAR10_XZ");
  const std::string dir = named != nullptr ? named : SourceFile("../shared/data/cifar-10");
  return std::filesystem::exists(dir + "/data_batch_1.bin.xz") ? dir : "";
}

TEST(Cifar10, TwoRanksLearn) {
  const std::string packed = PackedCifar10();
  if (packed.empty()) {
    GTEST_SKIP() << "the full CIFAR-10 is not here; name a directory with data_batch_1.bin.xz ... in "
                    "SCALELAB_CIFAR10_XZ";
  }
  Service service({"--local-slots", "2"});
  const std::string data = service.dir() + "/cifar-10";
  std::filesystem::create_directory(data);
  for (const auto& entry : std::filesystem::directory_iterator(packed)) {
    if (entry.path().extension() != ".xz") continue;
    const std::string to = data + "/" + entry.path().stem().string();
    ASSERT_EQ(
        RunProgram({"sh", "-c", absl::StrCat("xz -dc '", entry.path().string(), "' > '", to, "'")}).code, 0);
  }
  ASSERT_EQ(service.Start(), "");
  const bool whole = std::getenv("SCALELAB_LONG_TESTS") != nullptr;
  const std::string study = service.Submit(absl::StrCat(
      "study: cifar10\nfixed: {dataset: cifar10, data_dir: ", data,
      whole ? ", model: resnet20, epochs: 1" : ", model: resnet8, max_steps: 130, lr_schedule: cosine",
      ", ranks: 2}\n",
      "seed: 1\nscaling: {mode: strong, global_batch: 128}\nlr: {base: 0.1, reference_batch: 128}\n"));
  ASSERT_EQ(service.WaitFor(study, 800), 0) << service.Run({"run", "list", study}).out;
  const std::string run = service.Runs(study)[0]["name"];
  const auto shown = service.Json({"run", "show", run});
  const auto& summary = (shown.contains("run") ? shown["run"] : shown)["summary"];
  const double accuracy = summary["run/accuracy"], loss = summary["run/train_loss"];
  std::cout << (whole ? "one epoch" : "130 steps") << ": mean train loss " << loss << ", test accuracy "
            << accuracy << ", " << summary["run/throughput"] << " samples/s\n";
  EXPECT_LT(loss, whole ? 1.75 : 1.95);  // ln 10 = 2.30 before training
  // Guessing gives 0.10. The learning rate decays, because with a constant one the accuracy depends on
  // rounding: it is 0.27 on one kind of processor and more than 0.28 on others.
  EXPECT_GT(accuracy, whole ? 0.40 : 0.30);
}

}  // namespace
}  // namespace scalelab::e2e
