// Runs the scripts in journeys/, which a scientist would run from an empty directory to a figure,
// with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Debian's Python, which has the torch of package python3-torch.
constexpr char kPython[] = "/usr/bin/python3";

class Journeys : public testing::Test {
 protected:
  Journeys() {
    std::string pattern = (std::filesystem::temp_directory_path() / "scalelab-journey-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    std::filesystem::create_directories(directory_ + "/bin");
    std::filesystem::create_directories(directory_ + "/work");
    std::filesystem::create_symlink(Program("scalelab"), directory_ + "/bin/scalelab");
    std::filesystem::create_symlink(kPython, directory_ + "/bin/python3");
    environment_["PATH"] = absl::StrCat(directory_, "/bin:", std::getenv("PATH"));
    environment_["PYTHONPATH"] = SourceFile("client/python/src");
  }
  ~Journeys() override { std::filesystem::remove_all(directory_); }

  // Runs the script in an empty directory.
  Output Travel(const std::string& name, const Service& service) {
    environment_["SCALELAB_SERVER"] = service.socket();
    return RunProgram(
        {"sh", "-exc", absl::StrCat("cd ", directory_, "/work; . ", SourceFile("tests/e2e/journeys/"), name)},
        environment_, 280);
  }
  std::string Work(const std::string& name) const { return absl::StrCat(directory_, "/work/", name); }
  static bool Has(const std::string& program) {
    return RunProgram({"sh", "-c", absl::StrCat("command -v ", program)}).code == 0;
  }

  std::string directory_;
  std::map<std::string, std::string> environment_;
};

TEST_F(Journeys, AnOwnScriptWithASweptDropoutGivesLearningCurvesInPdf) {
  if (RunProgram({kPython, "-c", "import torch.distributed"}).code != 0)
    GTEST_SKIP() << kPython << " has no torch; deploy/setup --frameworks installs it";
  if (!Has("rsvg-convert"))
    GTEST_SKIP() << "rsvg-convert is not installed; deploy/setup installs librsvg2-bin";
  Service service({"--local-slots", "2"}, environment_);
  ASSERT_EQ(service.Start(), "");
  const Output travelled = Travel("own_script.sh", service);
  ASSERT_EQ(travelled.code, 0) << travelled.err << service.Run({"run", "list", "last"}).out;
  EXPECT_THAT(ReadFile(Work("loss.pdf")), StartsWith("%PDF-"));
  EXPECT_EQ(service.Runs("last").size(), 4u);
}

TEST_F(Journeys, TwoStudiesAreComparedInALatexTableWithIntervals) {
  if (!Has("rsvg-convert"))
    GTEST_SKIP() << "rsvg-convert is not installed; deploy/setup installs librsvg2-bin";
  Service service({"--local-slots", "2"}, environment_);
  ASSERT_EQ(service.Start(), "");
  const Output travelled = Travel("two_studies.sh", service);
  ASSERT_EQ(travelled.code, 0) << travelled.err;
  const std::string table = ReadFile(Work("comparison.tex"));
  EXPECT_THAT(table, AllOf(HasSubstr("\\begin{tabular}{"), HasSubstr("large-batch & "),
                           HasSubstr(" & small-batch & "), HasSubstr("{[}")))
      << table;
  EXPECT_THAT(ReadFile(Work("comparison.pdf")), StartsWith("%PDF-"));
  const Output shown = service.Run({"study", "compare", "large-batch", "small-batch"});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("differ in global_batch: 128 (large-batch), 64 (small-batch)"),
                               HasSubstr("differ in learning_rate")));
}

TEST_F(Journeys, AClaimIsVerifiedWithoutAServerAndMovesToAnotherService) {
  Service service({"--local-slots", "2"}, environment_), other({"--local-slots", "1"}, environment_);
  ASSERT_EQ(service.Start(), "");
  ASSERT_EQ(other.Start(), "");
  environment_["OTHER_SERVER"] = other.socket();
  const Output travelled = Travel("claim.sh", service);
  ASSERT_EQ(travelled.code, 0) << travelled.err;
  EXPECT_THAT(travelled.out, HasSubstr("computed again from the raw data, all equal"));
  EXPECT_THAT(travelled.err, HasSubstr("the study was there already: scaling"));
  nlohmann::json here = service.Json({"curve", "1"}), there = other.Json({"curve", "1"});
  EXPECT_EQ(here["series"], there["series"]);
  EXPECT_EQ(other.Json({"study", "list"})["studies"].size(), 1u) << "the second import changed something";
  EXPECT_THAT(other.Run({"study", "show", "1"}).out, AllOf(HasSubstr("imported"), HasSubstr("studies/1 of")));
  EXPECT_EQ(other.Processes().size(), 0u) << "an import has started a run";

  // The other service's bundle says that it is a copy.
  const std::string copy = Work("copy.tar");
  ASSERT_EQ(other.Run({"study", "bundle", "1", "-o", copy}).code, 0);
  EXPECT_EQ(RunProgram({Program("scalelab"), "verify", copy}).code, 0);
  std::mt19937_64 random(7);
  const std::string bytes = ReadFile(Work("scaling.tar"));
  for (int flip = 0; flip < 20; ++flip) {
    std::string damaged = bytes;
    damaged[random() % damaged.size()] ^= 1;
    WriteFile(Work("damaged.tar"), damaged);
    EXPECT_THAT(RunProgram({Program("scalelab"), "verify", Work("damaged.tar")}).err, HasSubstr("damaged"));
  }
}

}  // namespace
}  // namespace scalelab::e2e
