// The study files in deploy/studies.
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catalog/run_parameters.h"
#include "gmock/gmock.h"
#include "study/file/study_file.h"

namespace scalelab {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAreArray;

TEST(ShippedStudies, AreValid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(STUDIES)) {
    if (entry.path().extension() != ".yaml") continue;
    ++count;
    EXPECT_EQ(CheckStudyFile(entry.path().string()).status(), absl::OkStatus());
  }
  EXPECT_GE(count, 1);
}

TEST(ShippedStudies, QuickstartIsFourRunsOfTheDataBesideIt) {
  absl::StatusOr<CheckedStudyFile> checked = CheckStudyFile(absl::StrCat(STUDIES, "/quickstart.yaml"));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->study.runs.size(), 4u);
  EXPECT_EQ(checked->study.cells[1].spec.data_dir(),
            (std::filesystem::path(STUDIES).parent_path() / "data").string());
  EXPECT_NEAR(checked->study.cells[1].spec.learning_rate(), 0.05, 1e-12);
}

TEST(ShippedStudies, StrategiesRunsEachStrategyOfTheNativeEngines) {
  absl::StatusOr<CheckedStudyFile> checked = CheckStudyFile(absl::StrCat(STUDIES, "/strategies.yaml"));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_THAT(checked->study.unusable, IsEmpty());
  std::set<std::string> engines, variants;
  std::map<absl::string_view, std::set<std::string>> values;  // by key, of the engine with the strategy
  for (const auto& cell : checked->study.cells) {
    const v1::RunSpec& run = cell.spec;
    const std::string& engine = run.engine();
    engines.insert(engine);
    if (absl::StartsWith(run.model(), "gpt-")) variants.insert("gpt");
    if (engine == "native/ddp") values["gradient_compression"].insert(run.gradient_compression());
    if (run.ranks() < 4) continue;
    if (engine == "native/parameter-server") values["consistency"].insert(run.consistency());
    if (engine == "native/pipeline") values["pipeline_schedule"].insert(run.pipeline_schedule());
    if (engine == "native/pipeline" && run.pipeline_stages() == 2) variants.insert("pipeline x data");
    if (engine == "native/tensor" && run.tensor_ranks() == 2) variants.insert("tensor x data");
    if (engine != "native/local-sgd") continue;
    EXPECT_LT(run.local_start_step() + run.local_steps(), run.max_steps()) << "it averages no parameters";
    if (run.local_start_step() > 0) variants.insert("post-local");
    if (run.slow_momentum() > 0) variants.insert("slow momentum");
  }
  const std::set<absl::string_view> others = {"native/horovod", "native/serial", "native/none"};
  for (const Engine& engine : Engines()) {
    if (RunsTrainer(engine.name) && !others.contains(engine.name)) {
      EXPECT_TRUE(engines.contains(std::string(engine.name))) << engine.name;
    }
  }
  for (const char* key : {"gradient_compression", "consistency", "pipeline_schedule"})
    EXPECT_THAT(values[key], UnorderedElementsAreArray(FindStudyKey(key)->choices)) << key;
  EXPECT_THAT(variants,
              ElementsAre("gpt", "pipeline x data", "post-local", "slow momentum", "tensor x data"));
}

}  // namespace
}  // namespace scalelab
