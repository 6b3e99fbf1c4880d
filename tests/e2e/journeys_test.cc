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
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::SizeIs;
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

// Counts the straight lines in the drawing of a PDF: its streams are compressed.
constexpr char kCountLines[] = R"(
import re, sys, zlib
data = open(sys.argv[1], "rb").read()
lines = 0
for stream in re.finditer(rb"stream\r?\n", data):
    try:
        lines += len(re.findall(rb" l\b", zlib.decompressobj().decompress(data[stream.end():])))
    except zlib.error:
        pass
print(lines)
)";

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

  // Each run has a learning curve, in the colour of its dropout, and the PDF contains these curves.
  const std::vector<std::string> plot = {"plot", "last", "--y", "train/loss", "--by", "params.dropout"};
  const auto printed = [&](std::vector<std::string> more) {
    more.insert(more.begin(), plot.begin(), plot.end());
    return service.Run(more).out;
  };
  std::map<std::string, std::map<std::string, int>> points;  // by label and line
  const std::vector<std::string> rows = absl::StrSplit(printed({"-o", "csv"}), '\n', absl::SkipEmpty());
  ASSERT_GT(rows.size(), 1u);
  for (size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string> cells = absl::StrSplit(rows[i], ',');
    ASSERT_EQ(cells.size(), 5u) << rows[i];
    ++points[cells[1]][cells[0]];
  }
  ASSERT_THAT(points,
              ElementsAre(Pair("params.dropout=0.1", SizeIs(2)), Pair("params.dropout=0.5", SizeIs(2))));
  for (const auto& [label, lines] : points) {
    for (const auto& [line, count] : lines) EXPECT_GE(count, 32) << label << " " << line;
  }
  EXPECT_THAT(printed({"--format", "svg"}),
              AllOf(HasSubstr(">params.dropout=0.1<"), HasSubstr(">params.dropout=0.5<")));
  // The converter may join lines of the same direction.
  const Output drawn = RunProgram({kPython, "-c", kCountLines, Work("loss.pdf")});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_GE(std::atoi(drawn.out.c_str()), static_cast<int>(rows.size()) / 2);
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
