// Tests the runs that "measure: {communication: true}" adds, and the cells that "on_unusable: exclude" leaves out.
#include "study/communication.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "study/rules.h"
#include "tests/unit/study/study_spec_builder.h"

namespace scalelab {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr char kMeasure[] = R"("measure": {"communication": true})";

ExpandedStudy Expand(const v1::StudySpec& spec, const CellCheck& runs_here = {}) {
  absl::StatusOr<ExpandedStudy> study = ExpandStudy(spec, runs_here);
  EXPECT_TRUE(study.ok()) << study.status();
  return study.ok() ? *std::move(study) : ExpandedStudy{};
}

ExpandedStudy ExpandMatrix(const std::string& axes, const std::string& more = kMeasure,
                           const std::string& fixed = R"("epochs": 1)") {
  return Expand(Small(absl::StrCat(R"("matrix": [)", axes, "], ", more), fixed));
}

// Returns engine and ranks of each cell that was added, such as "native/none 2".
std::vector<std::string> Added(const ExpandedStudy& study) {
  std::vector<std::string> out;
  for (size_t i = study.cells.size() - study.baselines; i < study.cells.size(); ++i)
    out.push_back(absl::StrCat(study.cells[i].spec.engine(), " ", study.cells[i].spec.ranks()));
  return out;
}

std::string SentenceOf(const v1::StudySpec& spec) {
  const auto violations = ViolationsOf(ExpandStudy(spec).status());
  return violations.empty() ? "" : absl::StrCat(violations[0].field, ": ", violations[0].description);
}

constexpr char kBoth[] = R"({"key": "engine", "values": ["native/ddp", "native/horovod"]})";
constexpr char kRanks124[] = R"({"key": "ranks", "values": [1, 2, 4]})";

TEST(CommunicationBaselines, AreOnePairForEachNumberOfRanksWhateverTheEngines) {
  const ExpandedStudy study = ExpandMatrix(absl::StrCat(kBoth, ", ", kRanks124));
  EXPECT_EQ(study.cells.size(), 6u + 4u);
  EXPECT_THAT(Added(study),
              UnorderedElementsAre("native/none 2", "native/serial 2", "native/none 4", "native/serial 4"));
}

TEST(CommunicationBaselines, AreTheirCellsInEverythingButTheEngine) {
  const ExpandedStudy study = ExpandMatrix(R"({"key": "precision", "values": ["amp-bf16"]},
      {"key": "bucket_cap_mib", "values": [3]}, {"key": "ranks", "values": [2]})");
  ASSERT_EQ(study.baselines, 2);
  for (size_t i : {1, 2}) {
    v1::RunSpec expected = study.cells[0].spec;
    expected.set_engine(study.cells[i].spec.engine());
    expected.set_communication_baseline(true);
    EXPECT_EQ(study.cells[i].spec.SerializeAsString(), expected.SerializeAsString());
    EXPECT_EQ(study.cells[i].key.fields().at("precision").string_value(), "amp-bf16");
    EXPECT_EQ(study.cells[i].key.fields().at("engine").string_value(), study.cells[i].spec.engine());
  }
  EXPECT_FALSE(study.cells[0].spec.communication_baseline());
}

TEST(CommunicationBaselines, SettingsThatABaselineDoesNotReadMakeNoFurtherOne) {
  const ExpandedStudy cycles =
      ExpandMatrix(R"({"key": "cycle_time_ms", "values": [1, 5]}, {"key": "ranks", "values": [2]})", kMeasure,
                   R"("engine": "native/horovod")");
  EXPECT_THAT(Added(cycles), ElementsAre("native/none 2", "native/serial 2"));
  EXPECT_EQ(cycles.cells.back().key.fields().count("cycle_time_ms"), 0u);

  const ExpandedStudy buckets =
      ExpandMatrix(R"({"key": "bucket_cap_mib", "values": [1, 25]}, {"key": "ranks", "values": [2]})");
  EXPECT_THAT(Added(buckets), UnorderedElementsAre("native/none 2", "native/serial 2", "native/serial 2"))
      << "buckets change what serial does, and nothing of none";
}

TEST(CommunicationBaselines, ACellOfTheGridThatIsOneServesAsItIs) {
  const ExpandedStudy study = ExpandMatrix(
      R"({"key": "engine", "values": ["native/ddp", "native/none"]}, {"key": "ranks", "values": [2, 4]})");
  EXPECT_THAT(Added(study), UnorderedElementsAre("native/serial 2", "native/serial 4"));
  for (const Cell& cell : study.cells)
    EXPECT_EQ(cell.spec.communication_baseline(), cell.spec.engine() == "native/serial");
}

TEST(CommunicationBaselines, StandInEveryBlockInAnOrderOfItsOwn) {
  const ExpandedStudy study =
      ExpandMatrix(absl::StrCat(kBoth, ", ", kRanks124), absl::StrCat(kMeasure, R"(, "repeats": 6)"));
  ASSERT_EQ(study.runs.size(), 60u);
  std::set<std::vector<int>> orders;
  for (int block = 0; block < 6; ++block) {
    std::vector<int> cells;
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(study.runs[block * 10 + i].repeat, block);
      cells.push_back(study.runs[block * 10 + i].cell);
    }
    orders.insert(cells);
    EXPECT_EQ(std::set<int>(cells.begin(), cells.end()).size(), 10u);
  }
  EXPECT_GT(orders.size(), 1u);
}

TEST(CommunicationBaselines, AreOnlyThereWhenAskedFor) {
  EXPECT_EQ(ExpandMatrix(kRanks124, R"("repeats": 1)").baselines, 0);
}

TEST(CommunicationBaselines, ExcludedCellsNeedNone) {
  const ExpandedStudy study =
      ExpandMatrix(kRanks124, absl::StrCat(kMeasure, R"(, "exclude": [{"ranks": 4}])"));
  EXPECT_THAT(Added(study), ElementsAre("native/none 2", "native/serial 2"));
}

TEST(CommunicationBaselines, AStudyThatWouldMeasureNothingIsTold) {
  EXPECT_EQ(
      SentenceOf(Small(kMeasure)),
      "measure.communication: there is no communication to measure on 1 rank; add ranks of 2 or more, or "
      "remove communication");
  EXPECT_EQ(
      SentenceOf(Small(kMeasure, R"("ranks": 2, "engine": "native/serial")")),
      "measure.communication: no engine of the study overlaps communication with backward; add native/ddp "
      "or native/horovod, or remove communication");
  EXPECT_EQ(
      SentenceOf(Small(kMeasure, R"("ranks": 2, "engine": "custom", "command": ["a"])")),
      "fixed.engine: measure: {communication: true} does not support engine custom; measure native/ddp or "
      "native/horovod, or remove communication");
}

TEST(CommunicationBaselines, CountTowardsTheLargestStudy) {
  const std::string repeats = R"(, "repeats": 40000)";
  EXPECT_TRUE(ExpandStudy(Small(absl::StrCat(R"("measure": {})", repeats), R"("ranks": 2)")).ok());
  const absl::Status status = ExpandStudy(Small(kMeasure + repeats, R"("ranks": 2)")).status();
  EXPECT_EQ(ReasonOf(status), "STUDY_TOO_LARGE");
  EXPECT_EQ(
      status.message(),
      "the study has 120,000 runs, 80,000 of them to measure communication; at most 100,000 are allowed: "
      "split it into several studies, or remove communication");
}

TEST(ComparisonKey, IsThatOfTheRunAsThisEngineSeesIt) {
  v1::RunSpec run = Expand(Small("", R"("ranks": 2)")).cells[0].spec;
  v1::RunSpec other = run;
  other.set_cycle_time_ms(9);
  other.set_communication_baseline(true);
  EXPECT_EQ(ComparisonKey(run, "native/none"), ComparisonKey(other, "native/none"));
  EXPECT_NE(ComparisonKey(run, "native/horovod"), ComparisonKey(other, "native/horovod"));
  other.set_precision("amp-bf16");
  EXPECT_NE(ComparisonKey(run, "native/none"), ComparisonKey(other, "native/none"));
}

constexpr char kBackends[] =
    R"("matrix": [{"key": "backend", "values": ["mpi", "gloo", "nccl"]}, {"key": "ranks", "values": [2]}])";

TEST(OnUnusable, RefusesUnlessTheStudySaysExclude) {
  EXPECT_EQ(SentenceOf(Small(kBackends, R"("epochs": 1)")),
            "matrix.backend[2]: backend nccl needs GPUs; set resources.gpus_per_rank, or use mpi or gloo");
  const ExpandedStudy study =
      Expand(Small(absl::StrCat(kBackends, R"(, "on_unusable": "EXCLUDE")"), R"("epochs": 1)"));
  EXPECT_EQ(study.cells.size(), 2u);
  ASSERT_EQ(study.excluded.size(), 1u);
  EXPECT_EQ(study.excluded[0].spec.backend(), "nccl");
  EXPECT_THAT(study.unusable,
              ElementsAre("backend nccl needs GPUs; set resources.gpus_per_rank, or use mpi or gloo"));
}

TEST(OnUnusable, AsksWhoKnowsTheMachine) {
  const CellCheck two_slots = [](const v1::RunSpec& spec) -> std::optional<FieldViolation> {
    if (spec.ranks() <= 2) return std::nullopt;
    return FieldViolation{"matrix.ranks[2]", "too many"};
  };
  const std::string ranks = absl::StrCat(R"("matrix": [)", kRanks124, "]");
  const auto refused = ExpandStudy(Small(ranks, R"("epochs": 1)"), two_slots).status();
  EXPECT_THAT(ViolationsOf(refused), ElementsAre(FieldViolation{"matrix.ranks[2]", "too many"}));
  const ExpandedStudy study =
      Expand(Small(absl::StrCat(ranks, R"(, "on_unusable": "EXCLUDE")"), R"("epochs": 1)"), two_slots);
  EXPECT_EQ(study.cells.size(), 2u);
  EXPECT_EQ(study.excluded.size(), 1u);
  EXPECT_THAT(study.unusable, ElementsAre("too many"));
  EXPECT_EQ(study.shape.ranks_per_node, 2) << "nothing is allocated for what does not run";
}

TEST(OnUnusable, SomethingMustBeLeft) {
  EXPECT_EQ(
      SentenceOf(Small(R"("on_unusable": "EXCLUDE")", R"("ranks": 2, "backend": "nccl")")),
      "on_unusable: nothing is left to run: backend nccl needs GPUs; set resources.gpus_per_rank, or use "
      "mpi or gloo");
}

TEST(OnUnusable, DoesNotHideMistakes) {
  EXPECT_EQ(
      SentenceOf(Small(R"("on_unusable": "EXCLUDE")", R"("ranks": 3)")),
      "scaling.global_batch: global_batch 128 does not divide evenly over 3 ranks; the nearest that do are "
      "126 and 129");
  EXPECT_THAT(Expand(Small(R"("on_unusable": "EXCLUDE")")).unusable, IsEmpty());
}

}  // namespace
}  // namespace scalelab
