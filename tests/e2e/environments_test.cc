// Frameworks that a site provides: through a module of the real Environment Modules, and in a container. The
// adapter and PyTorch are real (Debian's python3-torch) and train on real images.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class EnvironmentsTest : public testing::Test {
 protected:
  EnvironmentsTest() {
    std::string pattern = "/tmp/scalelab-e2e-XXXXXX";
    root_ = mkdtemp(pattern.data());
    for (const char* directory : {"bin", "modules", "image"})
      std::filesystem::create_directories(absl::StrCat(root_, "/", directory));
  }
  ~EnvironmentsTest() override {
    service_.reset();
    std::filesystem::remove_all(root_);
  }
  void SetUp() override {
    if (RunProgram({"/usr/bin/python3", "-c", "import torch"}).code != 0)
      GTEST_SKIP() << "this machine's own python3 has no torch; deploy/setup --frameworks installs it";
  }
  // `environment` is the configuration's value for pytorch/ddp.
  void Start(const std::string& environment) {
    const std::string config = root_ + "/scalelabd.yaml";
    WriteFile(config, absl::StrCat("environments:\n  pytorch/ddp: ", environment, "\n"));
    service_ = std::make_unique<Service>(
        // Hide the other frameworks, because the service would probe all of them.
        std::vector<std::string>{"--local-slots", "2", "--config", config, "--frameworks",
                                 root_ + "/frameworks"},
        std::map<std::string, std::string>{{"MODULEPATH", root_ + "/modules"},
                                           {"PATH", absl::StrCat(root_, "/bin:", getenv("PATH"))}});
    ASSERT_EQ(service_->Start(), "");
  }
  static std::string Study() {
    return absl::StrCat(
        "study: s\nfixed: {engine: pytorch/ddp, model: resnet8, dataset: cifar10, data_dir: ", ShippedData(),
        ", max_steps: 3}\nmatrix: {ranks: [2]}\nscaling: {mode: strong, global_batch: 16}\nretry: {max: "
        "0}\n");
  }
  // Returns the provenance of the only run of a study with pytorch/ddp.
  nlohmann::json TrainedWith() {
    const std::string study = service_->Submit(Study());
    EXPECT_EQ(service_->WaitFor(study, 120), 0) << service_->Run({"run", "list", study}).out;
    const auto runs = service_->Runs(study);
    if (runs.size() != 1) return nullptr;
    EXPECT_EQ(Losses(*service_, runs[0]).size(), 3u);
    const auto attempt = service_->Attempts(runs[0]["name"])[0];
    const std::string file = attempt["directory"].get<std::string>() + "/provenance.json";
    EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(file); }));
    return nlohmann::json::parse(ReadFile(file))["framework"];
  }
  nlohmann::json Listed() {
    const nlohmann::json listed = service_->Json({"cluster", "frameworks"});
    for (const auto& framework : listed["frameworks"]) {
      if (framework["engine"] == "pytorch/ddp") return framework;
    }
    return nullptr;
  }

  std::string root_;
  std::unique_ptr<Service> service_;
};

TEST_F(EnvironmentsTest, AModuleBringsAFramework) {
  if (RunProgram({"bash", "-lc", "type module"}).code != 0)
    GTEST_SKIP() << "a login shell has no 'module' here; deploy/setup --slurm installs Environment Modules";
  // A python3 that works only if the module is loaded; the system's python3 would work without
  // the module, too.
  WriteFile(root_ + "/bin/python3", "#!/bin/sh\n[ -n \"$LAB_TORCH\" ] && exec /usr/bin/python3 \"$@\"\n");
  std::filesystem::permissions(root_ + "/bin/python3", std::filesystem::perms::owner_all);
  WriteFile(root_ + "/modules/lab-torch",
            absl::StrCat("#%Module\nprepend-path PATH ", root_, "/bin\nsetenv LAB_TORCH 1\n"));
  ASSERT_NO_FATAL_FAILURE(Start("{venv: '', modules: [lab-torch]}"));
  const nlohmann::json listed = Listed();
  EXPECT_EQ(listed["usable"], true) << listed;
  EXPECT_THAT(listed["version"].get<std::string>(), HasSubstr("torch "));
  const nlohmann::json used = TrainedWith();
  EXPECT_EQ(used["modules"], nlohmann::json::array({"lab-torch"})) << used;
  EXPECT_FALSE(used["versions"]["torch"].get<std::string>().empty()) << used;
}

TEST_F(EnvironmentsTest, AModuleThatIsNotThereIsTold) {
  if (RunProgram({"bash", "-lc", "type module"}).code != 0)
    GTEST_SKIP() << "a login shell has no 'module' here; deploy/setup --slurm installs Environment Modules";
  ASSERT_NO_FATAL_FAILURE(Start("{venv: '', modules: [lab-torch/7]}"));
  EXPECT_THAT(Listed()["reason"].get<std::string>(),
              AllOf(HasSubstr("modules lab-torch/7 could not be loaded on"), HasSubstr("module avail")));
  const Output refused = service_->Run({"study", "submit", service_->File("s.yaml", Study())});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("modules lab-torch/7 could not be loaded on"));
}

TEST_F(EnvironmentsTest, AContainerSeesWhatATrainingNeeds) {
  if (geteuid() != 0) GTEST_SKIP() << "tests/fakes/apptainer.sh needs root to mount";
  std::filesystem::create_symlink(SourceFile("tests/fakes/apptainer.sh"), root_ + "/bin/apptainer");
  ASSERT_NO_FATAL_FAILURE(Start(absl::StrCat("{container: ", root_, "/image}")));
  const nlohmann::json listed = Listed();
  EXPECT_EQ(listed["usable"], true) << listed;
  const nlohmann::json used = TrainedWith();
  EXPECT_EQ(used["container"], root_ + "/image") << used;
  EXPECT_FALSE(used["versions"]["torch"].get<std::string>().empty()) << used;
}

}  // namespace
}  // namespace scalelab::e2e
