#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/bench/emulation/recorded_steps.h"
#include "tests/bench/predict_bench.h"
#include "tests/bench/train_bench.h"

namespace scalelab::bench {
namespace {

constexpr int kWarmup = 4, kSteps = 40;

std::vector<NativeTraining> Trainings() {
  std::vector<NativeTraining> trainings;
  for (const char* model : {"resnet8", "resnet20", "resnet32", "resnet44", "resnet56"}) {
    for (const int batch : {16, 64})
      trainings.push_back({"native/ddp", model, 32, 10, batch, 2, kSteps, kWarmup});
  }
  for (const char* model : {"mobilenet_v2", "resnet18", "resnet50"})
    trainings.push_back({"native/ddp", model, 64, 100, 16, 2, kSteps, kWarmup});
  return trainings;
}

// Returns the steps after warm-up and the buckets of a training.
RecordedSteps StepsOf(const NativeTraining& training, const std::vector<std::string>& lines) {
  RecordedSteps steps{training.model, training.batch, {}, {}};
  for (const std::string& line : lines) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("event") || !event.contains("metrics")) continue;
    const auto& metrics = event["metrics"];
    const double forward = metrics.value("step/forward_s", 0.0),
                 backward = metrics.value("step/backward_s", 0.0);
    if (event["event"] == "step" && event.value("step", 0) >= kWarmup && forward > 0 && backward > 0)
      steps.seconds.emplace_back(forward, backward);
    const double all = metrics.value("bucket/backward_s", 0.0);
    for (int i = 0; all > 0 && metrics.contains(absl::StrCat("bucket/", i, "/bytes")); ++i) {
      const double ready = metrics.value(absl::StrCat("bucket/", i, "/ready_s"), 0.0) / all;
      steps.buckets.push_back(
          {std::clamp(ready, 1e-6, 1.0), metrics.value(absl::StrCat("bucket/", i, "/bytes"), 0.0)});
    }
  }
  return steps;
}

}  // namespace

std::vector<Figure> RecordSteps(const BenchOptions& options) {
  std::vector<Figure> figures;
  std::ofstream file(options.record);
  file << "# Steps of the native trainer: native/ddp, 2 ranks with one thread each.\n"
          "# model,batch of a rank,bucket,number,bytes,share of backward after which it is ready\n"
          "# model,batch of a rank,step,number,seconds of forward,seconds of backward\n";
  for (const NativeTraining& training : Trainings()) {
    const RecordedSteps steps = StepsOf(training, TrainNative(training, options.directory));
    if (steps.seconds.empty() || steps.buckets.empty()) {
      std::cerr << "scalelab-bench: " << training.model << " reported no steps or no buckets\n";
      return {};
    }
    const std::string model = absl::StrCat(steps.model, ",", steps.batch);
    for (size_t i = 0; i < steps.buckets.size(); ++i)
      file << absl::StrCat(model, ",bucket,", i, ",", static_cast<int64_t>(steps.buckets[i].bytes), ",",
                           steps.buckets[i].ready, "\n");
    std::vector<double> totals;
    for (size_t i = 0; i < steps.seconds.size(); ++i) {
      const auto& [forward, backward] = steps.seconds[i];
      totals.push_back(forward + backward);
      file << absl::StrCat(model, ",step,", i, ",", forward, ",", backward, "\n");
    }
    figures.push_back(
        {absl::StrCat("predict/recorded ", steps.model, "_b", steps.batch), 1e3 * Median(totals), "ms"});
  }
  if (file.flush()) return figures;
  std::cerr << "scalelab-bench: cannot write " << options.record << "\n";
  return {};
}

}  // namespace scalelab::bench
