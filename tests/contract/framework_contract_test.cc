// The contract that the launcher requires of every Framework.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catalog/engines.h"
#include "worker/framework.h"

namespace scalelab::worker {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

struct Implementation {
  std::string name;
  std::string engine;                                  // an engine that it serves
  std::function<std::unique_ptr<Framework>()> ready;   // an installation that is complete
  std::function<std::unique_ptr<Framework>()> broken;  // an installation that lacks something
  std::function<void(DesiredAttempt*)> spoil;          // changes the attempt so that it cannot run
  bool always_mpi = false;                             // it uses MPI even for one rank
  // Gives ctest a stable name; the default prints the bytes, which differ in each run.
  friend void PrintTo(const Implementation& value, std::ostream* out) { *out << value.name; }
};

// Makes a directory with a Python and the adapter of `engine`.
std::string Installed(const Engine& engine) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/framework-contract");
  std::filesystem::create_directories(directory + "/bin");
  for (const std::string& file : {std::string("bin/python"), std::string(engine.script)}) {
    const std::string path = absl::StrCat(directory, "/", file);
    std::ofstream(path) << "#!/bin/sh\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  return directory;
}

// Returns all frameworks, the Python framework once for each engine with an adapter.
std::vector<Implementation> Implementations() {
  std::vector<Implementation> all = {
      {"native", "native/ddp", [] { return NewNativeFramework("/bin/sh"); },
       [] { return NewNativeFramework("/nowhere/scalelab-trainer"); }, [](DesiredAttempt*) {}},
      {"custom", "custom", [] { return NewCustomFramework(); }, [] { return NewCustomFramework(); },
       [](DesiredAttempt* attempt) { attempt->mutable_spec()->clear_command(); }}};
  for (const Engine& engine : Engines()) {
    if (engine.program != Engine::Program::kAdapter) continue;
    std::string name(engine.name);
    for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    const auto ready = [&engine] { return NewPythonFramework(Installed(engine), "/opt/scalelab-trainer"); };
    const bool mpi = engine.rendezvous == scalelab::Rendezvous::kMpi;
    all.push_back({name, std::string(engine.name), ready, ready,
                   [](DesiredAttempt* attempt) { attempt->mutable_environment()->set_venv("/nowhere"); },
                   mpi});
    all.push_back({name + "_adapter", std::string(engine.name), ready,
                   [] { return NewPythonFramework("/nowhere", "/opt/scalelab-trainer"); },
                   [](DesiredAttempt*) {}, mpi});
  }
  return all;
}

class FrameworkContract : public ::testing::TestWithParam<Implementation> {
 protected:
  DesiredAttempt Attempt(int ranks) {
    DesiredAttempt attempt;
    attempt.set_directory("/runs/t0");
    attempt.mutable_spec()->set_engine(GetParam().engine);
    attempt.mutable_spec()->set_ranks(ranks);
    attempt.mutable_spec()->add_command("true");
    const Engine& engine = *FindEngine(GetParam().engine);
    if (engine.program == Engine::Program::kAdapter)
      attempt.mutable_environment()->set_venv(Installed(engine));
    return attempt;
  }
};

TEST_P(FrameworkContract, ServesItsEnginesAndNoOthers) {
  const auto framework = GetParam().ready();
  EXPECT_TRUE(framework->Serves(GetParam().engine));
  for (const char* other : {"", "nativ", "customs", "pytorch", "pytorch/zero"})
    EXPECT_FALSE(framework->Serves(other)) << other;
}

TEST_P(FrameworkContract, NamesAProgramForOneRankAndForMany) {
  const auto framework = GetParam().ready();
  for (const int ranks : {1, 2, 64}) {
    const auto program = framework->ProgramOf(Attempt(ranks));
    ASSERT_TRUE(program.ok()) << program.status();
    ASSERT_FALSE(program->argv.empty());
    EXPECT_FALSE(program->argv[0].empty());
    if (ranks == 1 && !GetParam().always_mpi) {
      EXPECT_EQ(program->rendezvous, Rendezvous::kNone);  // one rank needs no launcher
    }
    if (GetParam().always_mpi) {
      EXPECT_EQ(program->rendezvous, Rendezvous::kMpi);
    }
  }
}

TEST_P(FrameworkContract, GivesTheSameAnswerEachTime) {
  const auto framework = GetParam().ready();
  const auto first = framework->ProgramOf(Attempt(2));
  const auto second = framework->ProgramOf(Attempt(2));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->argv, second->argv);
  EXPECT_EQ(first->environment, second->environment);
}

TEST_P(FrameworkContract, SaysInASentenceWhatIsMissing) {
  DesiredAttempt attempt = Attempt(2);
  GetParam().spoil(&attempt);
  const auto program = GetParam().broken()->ProgramOf(attempt);
  EXPECT_EQ(program.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::EndsWith(program.status().message(), ".")) << program.status();
}

TEST(PythonFramework, TellsAnEngineThatIsNotInstalledWithTheCommandThatInstallsIt) {
  DesiredAttempt attempt;
  attempt.mutable_spec()->set_engine("keras/jax");
  attempt.mutable_environment()->set_venv("/lab/frameworks/keras-jax");
  EXPECT_EQ(
      NewPythonFramework("/nowhere", "")->ProgramOf(attempt).status().message(),
      "Engine keras/jax cannot run here: '/lab/frameworks/keras-jax/bin/python' does not exist or is not "
      "executable; try deploy/frameworks keras-jax.");
}

TEST(PythonFramework, RunsTheAdapterWithTheEnvironmentsPython) {
  const Engine& engine = *FindEngine("tensorflow/mirrored");
  const std::string directory = Installed(engine);
  DesiredAttempt attempt;
  attempt.set_directory("/runs/t0");
  attempt.mutable_spec()->set_engine("tensorflow/mirrored");
  attempt.mutable_spec()->set_ranks(2);
  attempt.mutable_environment()->set_venv(directory);
  auto program = NewPythonFramework(directory, "/opt/bin/scalelab-trainer")->ProgramOf(attempt);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(program->argv, ElementsAre(directory + "/bin/python", directory + "/tensorflow_mirrored.py"));
  EXPECT_THAT(program->environment, Contains(Pair("SCALELAB_TRAINER", "/opt/bin/scalelab-trainer")));
  EXPECT_TRUE(program->one_process);

  // Modules provide the container's programs, so PATH is not checked.
  attempt.mutable_spec()->set_gpus_per_rank(1);
  attempt.mutable_spec()->set_data_dir("/data/cifar");
  attempt.mutable_environment()->clear_venv();
  attempt.mutable_environment()->set_container("docker://tensorflow");
  attempt.mutable_environment()->add_modules("apptainer/1.2");
  program = NewPythonFramework(directory, "/opt/bin/scalelab-trainer")->ProgramOf(attempt);
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_GT(program->argv.size(), 4u);
  EXPECT_EQ(program->argv[0], "bash");
  EXPECT_THAT(program->argv[2], HasSubstr("module load apptainer/1.2"));
  EXPECT_THAT(std::vector<std::string>(program->argv.begin() + 4, program->argv.end()),
              ElementsAre("apptainer", "exec", "--nv", "--bind", "/runs/t0", "--bind", directory, "--bind",
                          "/opt/bin", "--bind", "/data/cifar", "docker://tensorflow", "python3",
                          directory + "/tensorflow_mirrored.py"));
}

TEST(PythonFramework, SaysWhatIsMissingOfAContainer) {
  const Engine& engine = *FindEngine("pytorch/ddp");
  DesiredAttempt attempt;
  attempt.mutable_spec()->set_engine("pytorch/ddp");
  attempt.mutable_environment()->set_container("/nowhere/torch.sif");
  EXPECT_THAT(std::string(NewPythonFramework(Installed(engine), "")->ProgramOf(attempt).status().message()),
              HasSubstr("its container '/nowhere/torch.sif' does not exist"));
}

INSTANTIATE_TEST_SUITE_P(All, FrameworkContract, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace scalelab::worker
