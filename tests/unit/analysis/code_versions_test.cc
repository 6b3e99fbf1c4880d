#include "analysis/code_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::CodeSnapshot;
using scalelab::v1::CurveSeries;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

CodeSnapshot Code(const std::string& commit, const std::string& train = "aaaaaaaaaaaa") {
  CodeSnapshot code;
  auto& file = *code.add_files();
  file.set_path("/home/ada/train.py");
  file.set_sha256(train);
  code.set_git_root("/home/ada");
  code.set_git_commit(commit);
  return code;
}

CodeSnapshot Changed(CodeSnapshot code, const std::string& diff) {
  code.set_git_dirty(!diff.empty());
  code.set_diff_sha256(diff);
  return code;
}

// Two cells with three runs each, which have the ids 1 to 6.
class CodeVersions : public ::testing::Test {
 protected:
  CurveSeries Series(const std::map<int64_t, CodeSnapshot>& codes) {
    results_.Cell(1).Ok({100, 101, 102}).Cell(2).Ok({190, 191, 192});
    RunCodes of_runs;
    for (const auto& [run, code] : codes) {
      of_runs.of_run[run] = of_runs.codes.size();
      of_runs.codes.push_back(code);
    }
    return results_.WithCode(of_runs).series(0);
  }
  static std::vector<int> Runs(const CurveSeries& series) {
    std::vector<int> runs;
    for (const auto& version : series.code_versions()) runs.push_back(version.runs());
    return runs;
  }
  Results results_;
};

TEST_F(CodeVersions, OneVersionHasNoNote) {
  const auto series = Series({{1, Code("c0ffee")}, {2, Code("c0ffee")}, {6, Code("c0ffee")}});
  EXPECT_THAT(Runs(series), ElementsAre(3)) << "runs without code are not counted";
  EXPECT_EQ(series.code_versions(0).code().git_commit(), "c0ffee");
  EXPECT_THAT(series.notes(), Not(testing::Contains(HasSubstr("versions"))));
}

TEST_F(CodeVersions, TheNoteNamesOnlyWhatDiffers) {
  const auto series =
      Series({{1, Code("c0ffee0000")}, {2, Code("c0ffee0000", "bbbbbbbbbbbb")}, {5, Code("c0ffee0000")}});
  EXPECT_THAT(Runs(series), ElementsAre(2, 1));
  EXPECT_THAT(series.notes(),
              testing::Contains(AllOf(HasSubstr("2 versions of the program"),
                                      HasSubstr("train.py aaaaaaaa (2 runs); train.py bbbbbbbb (1 run)"),
                                      Not(HasSubstr("commit")), Not(HasSubstr("changes")))));
}

TEST_F(CodeVersions, CommitsAndChangesSeparateVersions) {
  const auto series = Series({{1, Changed(Code("c0ffee0000"), "")},
                              {2, Changed(Code("c0ffee0000"), "dddddddddddd")},
                              {3, Changed(Code("beef000000"), "")},
                              {4, Changed(Code("c0ffee0000"), "")}});
  EXPECT_THAT(Runs(series), ElementsAre(2, 1, 1));
  EXPECT_THAT(series.notes(),
              testing::Contains(HasSubstr("commit c0ffee00, no changes (2 runs); commit c0ffee00, changes "
                                          "dddddddd (1 run); commit beef0000, no changes (1 run)")));
}

TEST_F(CodeVersions, WhatIsNotKnownOfARunIsNoDifference) {
  CodeSnapshot more = Code("c0ffee");
  auto& config = *more.add_files();
  config.set_path("/home/ada/1.yaml");
  config.set_sha256("eeee");
  const auto series = Series({{1, Code("c0ffee")}, {2, Changed(Code("c0ffee"), "dddd")}, {3, more}});
  EXPECT_THAT(Runs(series), ElementsAre(3));
  const CodeSnapshot& code = series.code_versions(0).code();
  EXPECT_THAT(code.files(), SizeIs(2));
  EXPECT_EQ(code.diff_sha256(), "dddd");
}

TEST_F(CodeVersions, ALongNoteIsCut) {
  std::map<int64_t, CodeSnapshot> codes;
  for (int run = 1; run <= 6; ++run) codes[run] = Code(std::string(8, static_cast<char>('0' + run)));
  EXPECT_THAT(Series(codes).notes(),
              testing::Contains(AllOf(HasSubstr("6 versions"), HasSubstr("44444444 (1 run); and 2 more"),
                                      Not(HasSubstr("55555555")))));
}

TEST_F(CodeVersions, SeriesOfOtherHardwareHaveTheirOwnRuns) {
  results_.Cell(1).Ok({100, 101}, "a100").Ok({50}, "cpu");
  RunCodes codes{{Code("c0ffee"), Code("beef")}, {{1, 0}, {2, 0}, {3, 1}}};
  const auto curve = results_.WithCode(codes);
  ASSERT_THAT(curve.series(), SizeIs(2));
  for (const CurveSeries& series : curve.series()) {
    ASSERT_THAT(series.code_versions(), SizeIs(1));
    EXPECT_EQ(series.code_versions(0).code().git_commit(), series.fingerprint() == "cpu" ? "beef" : "c0ffee");
  }
}

TEST_F(CodeVersions, OtherEnginesHaveNone) { EXPECT_THAT(Series({}).code_versions(), IsEmpty()); }

}  // namespace
}  // namespace scalelab::analysis
