// Tests that the cells of a list, which share their values, equal the cells that the study describes.
#include "study/cell_list.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "tests/unit/study/study_spec_builder.h"

namespace scalelab {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::SizeIs;

ExpandedStudy Expand(const v1::StudySpec& spec) {
  absl::StatusOr<ExpandedStudy> study = ExpandStudy(spec);
  EXPECT_TRUE(study.ok()) << study.status() << spec.ShortDebugString();
  return study.ok() ? *std::move(study) : ExpandedStudy{};
}

// Returns the study with only this cell: the values of its axes are fixed.
v1::StudySpec Only(v1::StudySpec spec, const google::protobuf::Struct& key) {
  spec.clear_matrix();
  spec.clear_zip();
  spec.clear_exclude();
  for (const auto& [name, value] : key.fields()) (*spec.mutable_fixed()->mutable_fields())[name] = value;
  return spec;
}

// Expects that each cell of the study has the same parameters as in a study with only this cell.
void ExpectCellsAsAlone(const std::string& more, const std::string& fixed = R"("dataset": "synthetic")") {
  const v1::StudySpec spec =
      Spec(absl::StrCat(R"({"study": "s", "fixed": {"model": "resnet20", )", fixed, "}, ", more, "}"));
  const ExpandedStudy study = Expand(spec);
  ASSERT_FALSE(study.cells.empty());
  for (const CellList* list : {&study.cells, &study.excluded}) {
    for (const Cell& cell : *list) {
      const ExpandedStudy alone = Expand(Only(spec, cell.key));
      ASSERT_THAT(alone.cells, SizeIs(1));
      EXPECT_TRUE(MessageDifferencer::Equals(cell.spec, alone.cells[0].spec))
          << cell.spec.ShortDebugString() << "\n"
          << alone.cells[0].spec.ShortDebugString();
    }
  }
}

constexpr char kRanks[] = R"({"key": "ranks", "values": [4, 1, 2]})";

TEST(CellList, ParametersThatAreDerivedFollowEachCellsOwnValues) {
  ExpectCellsAsAlone(
      absl::StrCat(R"("matrix": [{"key": "dataset", "values": ["synthetic", "cifar10"]}, )", kRanks,
                   R"(, {"key": "global_batch", "values": [64, 128]},
                                     {"key": "learning_rate", "values": [0.1, 0.3]}],
                                  "exclude": [{"ranks": 2, "global_batch": 64}],
                                  "lr": {"rule": "LINEAR", "warmup_epochs": 2})"),
      R"("data_dir": "/d")");
}

TEST(CellList, WeakScalingAndRunsOfFewSteps) {
  ExpectCellsAsAlone(absl::StrCat(R"("scaling": {"mode": "WEAK"}, "matrix": [)", kRanks,
                                  R"(, {"key": "max_steps", "values": [3, 1000, 8]},
                                     {"key": "batch_per_rank", "values": [16, 32]}], "lr": {"rule": "SQRT"})"));
}

TEST(CellList, ImagesOfDifferentSizesAndAZipGroup) {
  ExpectCellsAsAlone(R"("zip": [{"axes": [{"key": "ranks", "values": [1, 2]},
                                          {"key": "augment", "values": [true, false]}]}],
                        "matrix": [{"key": "image_size", "values": [64, 32]}])");
  const ExpandedStudy folder =
      Expand(Spec(R"({"study": "s", "matrix": [{"key": "image_size", "values": [64, 128]}],
          "fixed": {"ranks": 1, "model": "resnet20", "dataset": "imagefolder", "data_dir": "/d"}})"));
  ASSERT_THAT(folder.cells, SizeIs(2));
  EXPECT_EQ(folder.cells[1].spec.image_size(), 128);
}

TEST(CellList, CommandsThatAreAnAxisAreTheCellsOwn) {
  const v1::StudySpec spec = Spec(R"({"study": "s", "fixed": {"ranks": 1}, "matrix": [
      {"key": "engine", "values": ["native/ddp", "custom"]},
      {"key": "command", "values": [["a", "1"], ["b"]]}, {"key": "model", "values": ["resnet20", "resnet32"]},
      {"key": "dataset", "values": ["synthetic"]}]})");
  const ExpandedStudy study = Expand(spec);
  ASSERT_THAT(study.cells, SizeIs(8));
  for (const Cell& cell : study.cells) {
    const auto& key = cell.key.fields().at("command").list_value().values();
    ASSERT_EQ(cell.spec.command_size(), key.size());
    for (int i = 0; i < key.size(); ++i) EXPECT_EQ(cell.spec.command(i), key[i].string_value());
  }
  EXPECT_EQ(study.cells.SpecWithoutCommand(3).command_size(), 0);
  EXPECT_EQ(study.cells.SpecWithoutCommand(3).engine(), study.cells[3].spec.engine());
}

TEST(CellList, StoresAValueOnceHoweverManyCellsHaveIt) {
  const std::string script(100'000, 'x');
  const ExpandedStudy study = Expand(Small(
      absl::StrCat(R"("matrix": [{"key": "command", "values": [["sh", "-c", ")", script, R"("], ["b"]]}, )",
                   kRanks, R"(, {"key": "momentum", "values": [0.1, 0.2, 0.3, 0.4, 0.5]}])"),
      R"("engine": "custom")"));
  ASSERT_THAT(study.cells, SizeIs(30));
  const CellValues& values = study.cells.values();
  size_t bytes = values.common().ByteSizeLong();
  for (int number = 1; number <= values.size(); ++number) bytes += values.value(number).ByteSizeLong();
  EXPECT_LT(bytes, 2 * script.size());
  EXPECT_EQ(study.cells[2].spec.command(2), script);
}

TEST(CellList, ACellThatIsAddedWholeIsReadAsItWas) {
  Cell first = Expand(Small()).cells[0], other = first;
  first.spec.set_seed(int64_t{1} << 60);
  other.spec = first.spec;
  other.spec.set_epochs(7);
  other.spec.clear_model();
  other.spec.set_evaluate(false);
  other.spec.add_command("a");
  (*other.key.mutable_fields())["epochs"].set_number_value(7);
  CellList list(std::make_shared<CellValues>(first.spec));
  list.Add(first);
  list.Add(other);
  ASSERT_THAT(list, SizeIs(2));
  EXPECT_TRUE(MessageDifferencer::Equals(list[0].spec, first.spec));
  EXPECT_TRUE(MessageDifferencer::Equals(list[1].spec, other.spec)) << list[1].spec.ShortDebugString();
  EXPECT_TRUE(MessageDifferencer::Equals(list[1].key, other.key));
  EXPECT_TRUE(list.spec(0).empty()) << "it is what the cells have in common";
}

TEST(CellList, NumbersThatDoNotFitAFieldAreNoUndefinedBehaviour) {
  CellList list;
  google::protobuf::Value value;
  for (const double number : {1e300, -1e300, 4e9, -4e9}) {
    value.set_number_value(number);
    const int of_ranks = list.values().NumberOf("ranks", value),
              of_seed = list.values().NumberOf("seed", value);
    list.Add({}, {of_ranks, of_seed, list.values().NumberOf("of_a_newer_version", value)});
    EXPECT_EQ(list.NeedsOf(list.size() - 1).ranks, list.back().spec.ranks());
  }
  EXPECT_EQ(list[2].spec.seed(), 4'000'000'000);
}

}  // namespace
}  // namespace scalelab
