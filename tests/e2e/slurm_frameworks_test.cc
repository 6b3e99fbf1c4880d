// Runs every framework whose environment exists, with its own rendezvous, over two nodes of a real Slurm cluster. The long form
// runs every engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
    // synchronise. Also leave out the last five: on two ranks, they pass the whole batch through the model,
    // which changes the statistics of batch normalisation.
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

}  // namespace
}  // namespace scalelab::e2e
