// Runs every framework whose environment exists, with its own rendezvous, and the engines that divide the model or the parameters,
// over two nodes of a real Slurm cluster. The long form runs every engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "catalog/engines.h"
#include "tests/e2e/slurm_service.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Returns the directory in which deploy/frameworks creates environments. The service must get this path,
// because it has another home directory.
std::string FrameworksDirectory() {
  if (const char* directory = getenv("SCALELAB_FRAMEWORKS")) return directory;
  if (const char* data = getenv("XDG_DATA_HOME")) return absl::StrCat(data, "/scalelab/frameworks");
  const char* home = getenv("HOME");
  return absl::StrCat(home != nullptr ? home : "/nowhere", "/.local/share/scalelab/frameworks");
}

TEST(SlurmFrameworks, TrainTheSameOverTwoNodes) {
  if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
  DevCluster cluster({"-n", "2"});
  ASSERT_EQ(cluster.Start(), "");
  SlurmService service(cluster, {"--frameworks", FrameworksDirectory()});
  ASSERT_EQ(service.Start(), "");

  std::set<std::string> over_nodes, missing;
  // Engines that share an environment and a rendezvous start in the same way; the short form runs the first one of each.
  const bool all = std::getenv("SCALELAB_LONG_TESTS") != nullptr;
  std::set<std::pair<absl::string_view, Rendezvous>> ways;
  bool mirrored = false;
  const auto known = service.Json({"cluster", "frameworks"});
  for (const auto& framework : known["frameworks"]) {
    const std::string engine = framework["engine"];
    // Leave out custom, which needs a program, pytorch/dp, which needs GPUs, and native/none, which does not
    // synchronise. Also leave out the last five, which the next test runs: on two ranks, they pass the whole
    // batch through the model, which changes the statistics of batch normalisation.
    static const std::set<std::string> kOthers = {
        "custom",          "pytorch/dp",       "native/none",   "native/data-parallel",
        "native/pipeline", "pytorch/pipeline", "native/tensor", "native/parameter-server"};
    if (kOthers.contains(engine)) continue;
    if (!framework["usable"].get<bool>()) {
      missing.insert(absl::StrCat(engine, ": ", framework["fix"].get<std::string>()));
    } else if (engine == "tensorflow/mirrored") {
      mirrored = true;  // one process
    } else if (ways.emplace(FindEngine(engine)->environment, FindEngine(engine)->rendezvous).second || all) {
      over_nodes.insert(engine);
    }
  }
  for (const std::string& engine : missing) std::cout << "left out: " << engine << "\n";
  const bool native_only = std::all_of(over_nodes.begin(), over_nodes.end(), RunsTrainer);
  if (native_only && !mirrored)
    GTEST_SKIP() << "only native engines can run here; `deploy/frameworks all` makes the environments";

  const auto study = [&](const std::string& engines, int ranks_per_node) {
    return ClusterStudy(
        absl::StrCat("engine: [", engines, "], ranks: [2]"), 1, 4,
        absl::StrCat("lr: {base: 0.02, rule: constant}\nretry: {max: 0}\nbaseline: {ranks: 2}\n",
                     "resources: {memory_mib: 4000, ranks_per_node: ", ranks_per_node, "}\n"),
        "resnet8");
  };
  std::vector<std::string> names = {service.Submit(study(absl::StrJoin(over_nodes, ", "), 1))};
  if (mirrored) names.push_back(service.Submit(study("native/ddp, tensorflow/mirrored", 2)));
  for (const std::string& name : names) {
    ASSERT_EQ(service.WaitFor(name, 600), 0) << service.Run({"run", "list", name}).out;
    EXPECT_THAT(LostOrDoubled(service, name), IsEmpty());
    const auto curve = service.Json({"curve", name});
    for (const auto& series : curve["series"]) {
      const auto& point = series["points"][0];
      EXPECT_EQ(point["state"], "OK") << series;
      const Engine* engine = FindEngine(series["key"]["engine"].get<std::string>());
      ASSERT_NE(engine, nullptr) << series;
      // Only an engine that differs by design has a difference.
      const std::string difference = point.contains("training_difference")
                                         ? point["training_difference"]["message"].get<std::string>()
                                         : "";
      EXPECT_EQ(difference.empty(), engine->differs.empty()) << series;
      EXPECT_THAT(difference, HasSubstr(std::string(engine->differs)));
      EXPECT_GT(point["throughput"]["mean"].get<double>(), 0) << series;
    }
    for (const auto& run : service.Runs(name)) {
      const auto attempt = service.Attempts(run["name"])[0];
      EXPECT_EQ(attempt["nodes"].size(), name == names[0] ? 2u : 1u) << attempt;
      if (run["spec"]["engine"].get<std::string>().starts_with("native/")) continue;
      const auto provenance =
          nlohmann::json::parse(ReadFile(attempt["directory"].get<std::string>() + "/provenance.json"));
      EXPECT_THAT(provenance["framework"]["versions"], testing::Not(IsEmpty())) << provenance;
    }
  }
  EXPECT_EQ(service.LeftBehind(2), "");
  EXPECT_EQ(service.Stop(), 0);
}

// Returns the loss of each step, as the mean over the ranks that report one. Servers do not train, so they report none.
std::vector<double> MeanLosses(const Service& service, const nlohmann::json& run) {
  std::map<int64_t, std::vector<double>> of_steps;
  for (const std::string& line : service.Points(run["name"])) {
    const std::vector<std::string> f = absl::StrSplit(line, ',');
    if (f.size() == 5 && f[3] == "train/loss") of_steps[std::stoll(f[1])].push_back(std::stod(f[4]));
  }
  std::vector<double> means;
  for (const auto& [step, losses] : of_steps) {
    double sum = 0;
    for (const double loss : losses) sum += loss;
    means.push_back(sum / static_cast<double>(losses.size()));
  }
  return means;
}

// Submits a study of four steps, waits for it, and expects that all its runs succeed with the losses of the first one.
void ExpectEqualTraining(const SlurmService& service, const std::string& fixed, const std::string& zip,
                         int ranks_per_node, double tolerance) {
  constexpr size_t kSteps = 4;
  const std::string study = service.Submit(absl::StrCat(
      "study: divided\nfixed: {", fixed, ", max_steps: ", kSteps, "}\nzip: [{", zip,
      "}]\nseed: 11\norder: listed\nscaling: {mode: strong, global_batch: 16}\nlr: {rule: constant}\n",
      "measure: {evaluate: false}\nretry: {max: 0}\nresources: {memory_mib: 4000, ranks_per_node: ",
      ranks_per_node, "}\n"));
  ASSERT_EQ(service.WaitFor(study, 300), 0) << service.Run({"run", "list", study}).out;
  EXPECT_THAT(LostOrDoubled(service, study), IsEmpty());
  std::vector<double> expected;
  for (const auto& run : service.Runs(study)) {
    const int ranks = run["spec"]["ranks"].get<int>();
    const std::string engine =
        absl::StrCat(run["spec"]["engine"].get<std::string>(), " on ", ranks, " ranks");
    const auto attempts = service.Attempts(run["name"]);
    EXPECT_EQ(attempts[0]["nodes"].size(), ranks > ranks_per_node ? 2u : 1u) << attempts[0];
    const std::vector<double> losses = MeanLosses(service, run);
    if (expected.empty()) {
      ASSERT_EQ(losses.size(), kSteps) << engine;
      expected = losses;
    }
    const double deviation = LargestDeviation(losses, expected);
    std::cout << engine << ": largest relative deviation of the loss " << deviation << "\n";
    EXPECT_LT(deviation, tolerance) << engine;
  }
}

// The expected losses are those of native/data-parallel, which has one process and does not communicate.
TEST(SlurmStrategies, TrainLikeOneProcessOverTwoNodes) {
  if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
  DevCluster cluster({"-n", "2"});
  ASSERT_EQ(cluster.Start(), "");
  SlurmService service(cluster, {"--frameworks", FrameworksDirectory()});
  ASSERT_EQ(service.Start(), "");
  // Each of the two parts of a batch passes through the model separately, so that both stages of a pipeline work.
  ExpectEqualTraining(service,
                      "model: gpt-nano, dataset: synthetic-tokens, sequence_length: 32, vocabulary: 64, "
                      "learning_rate: 0.1, accumulation_steps: 2",
                      "engine: [native/data-parallel, native/pipeline, native/tensor, "
                      "native/parameter-server], ranks: [1, 2, 2, 2]",
                      /*ranks_per_node=*/1, /*tolerance=*/1e-4);
  if (std::getenv("SCALELAB_LONG_TESTS") != nullptr) {
    // With frozen statistics, the losses do not depend on how a batch is divided. On four ranks, there are two groups of two
    // ranks, and two servers for two ranks that train.
    ExpectEqualTraining(
        service,
        absl::StrCat("model: resnet8, batch_norm: eval, dataset: cifar10, data_dir: ", ShippedData(),
                     ", learning_rate: 0.002, accumulation_steps: 2, pipeline_stages: 2, "
                     "tensor_ranks: 2, server_ranks: 2"),
        "engine: [native/data-parallel, native/ddp, native/pipeline, native/tensor, "
        "native/parameter-server], ranks: [1, 4, 4, 4, 4]",
        /*ranks_per_node=*/2, /*tolerance=*/1e-3);
    const auto known = service.Json({"cluster", "frameworks"});
    for (const auto& framework : known["frameworks"]) {
      if (framework["engine"] != "pytorch/pipeline") continue;
      if (!framework["usable"].get<bool>()) {
        std::cout << "left out: pytorch/pipeline: " << framework["fix"].get<std::string>() << "\n";
        continue;
      }
      ExpectEqualTraining(service,
                          absl::StrCat("model: resnet8, dataset: cifar10, data_dir: ", ShippedData(),
                                       ", learning_rate: 0.02, accumulation_steps: 2, ranks: 2"),
                          "engine: [native/pipeline, pytorch/pipeline]", /*ranks_per_node=*/1,
                          /*tolerance=*/1e-3);
    }
  }
  EXPECT_EQ(service.LeftBehind(2), "");
  EXPECT_EQ(service.Stop(), 0);
}

}  // namespace
}  // namespace scalelab::e2e
