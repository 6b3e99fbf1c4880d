// What the launcher relies on, of every Framework.
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/framework.h"

namespace scalelab::worker {
namespace {

struct Implementation {
  std::string name;
  std::string engine;                                  // one that it serves
  std::function<std::unique_ptr<Framework>()> ready;   // where all it needs is there
  std::function<std::unique_ptr<Framework>()> broken;  // where something it needs is missing
  std::function<void(v1::RunSpec*)> spoil;             // makes a specification that it cannot run
};

class FrameworkContract : public ::testing::TestWithParam<Implementation> {
 protected:
  v1::RunSpec Spec(int ranks) {
    v1::RunSpec spec;
    spec.set_engine(GetParam().engine);
    spec.set_ranks(ranks);
    spec.add_command("true");
    return spec;
  }
};

TEST_P(FrameworkContract, ServesItsEnginesAndNoOthers) {
  const auto framework = GetParam().ready();
  EXPECT_TRUE(framework->Serves(GetParam().engine));
  for (const char* other : {"", "nativ", "customs", "pytorch/ddp"})
    EXPECT_FALSE(framework->Serves(other)) << other;
}

TEST_P(FrameworkContract, NamesAProgramForOneRankAndForMany) {
  const auto framework = GetParam().ready();
  for (const int ranks : {1, 2, 64}) {
    const auto program = framework->ProgramOf(Spec(ranks));
    ASSERT_TRUE(program.ok()) << program.status();
    ASSERT_FALSE(program->argv.empty());
    EXPECT_FALSE(program->argv[0].empty());
    if (ranks == 1) {
      EXPECT_EQ(program->rendezvous, Rendezvous::kNone);  // one rank needs no launcher
    }
  }
}

TEST_P(FrameworkContract, GivesTheSameAnswerEachTime) {
  const auto framework = GetParam().ready();
  const auto first = framework->ProgramOf(Spec(2));
  const auto second = framework->ProgramOf(Spec(2));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->argv, second->argv);
  EXPECT_EQ(first->environment, second->environment);
}

TEST_P(FrameworkContract, SaysInASentenceWhatIsMissing) {
  v1::RunSpec spec = Spec(2);
  GetParam().spoil(&spec);
  const auto program = GetParam().broken()->ProgramOf(spec);
  EXPECT_EQ(program.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::EndsWith(program.status().message(), ".")) << program.status();
}

INSTANTIATE_TEST_SUITE_P(
    All, FrameworkContract,
    ::testing::Values(Implementation{"native", "native/ddp", [] { return NewNativeFramework("/bin/sh"); },
                                     [] { return NewNativeFramework("/nowhere/scalelab-trainer"); },
                                     [](v1::RunSpec*) {}},
                      Implementation{"custom", "custom", [] { return NewCustomFramework(); },
                                     [] { return NewCustomFramework(); },
                                     [](v1::RunSpec* spec) { spec->clear_command(); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace scalelab::worker
