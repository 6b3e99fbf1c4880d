// Tests of parameters whose names the user chooses (params.NAME, env.NAME), of templates in commands, and of
// metrics from the output.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "study/rules.h"
#include "study/values.h"
#include "tests/unit/study/study_spec_builder.h"

namespace scalelab {
namespace {

using testing::HasSubstr;

// A valid study of engine custom, followed by more JSON fields.
v1::StudySpec Custom(const std::string& more = "", const std::string& fixed = "") {
  return Spec(R"({"study": "s", "fixed": {"engine": "custom", "command": ["./a", "x"], "ranks": 1)" +
              (fixed.empty() ? "" : ", " + fixed) + "}" + (more.empty() ? "" : ", " + more) + "}");
}

ExpandedStudy Expand(const v1::StudySpec& spec) {
  absl::StatusOr<ExpandedStudy> study = ExpandStudy(spec);
  EXPECT_TRUE(study.ok()) << study.status();
  return study.ok() ? *std::move(study) : ExpandedStudy{};
}

double Param(const Cell& cell, const std::string& name) {
  const auto& fields = cell.spec.params().fields();
  return fields.contains(name) ? fields.at(name).number_value() : -1;
}

TEST(OwnParameters, AreAxesWhoseValuesEachRunHas) {
  const ExpandedStudy study = Expand(Custom(
      R"("matrix": [{"key": "params.dropout", "values": [0.1, 0.5]}, {"key": "env.NCCL_ALGO", "values": ["Ring", "Tree"]}])",
      R"("params.layers": 4)"));
  ASSERT_EQ(study.cells.size(), 4u);
  const Cell cell = study.cells[3];
  EXPECT_EQ(Param(cell, "dropout"), 0.5);
  EXPECT_EQ(Param(cell, "layers"), 4);
  EXPECT_EQ(cell.spec.env().fields().at("NCCL_ALGO").string_value(), "Tree");
  EXPECT_EQ(cell.key.fields().at("params.dropout").number_value(), 0.5);
  EXPECT_EQ(cell.key.fields().size(), 2u);
  EXPECT_EQ(Param(study.cells[0], "dropout"), 0.1);
}

TEST(OwnParameters, MoveTogetherInAZip) {
  const ExpandedStudy study = Expand(Custom(
      R"("zip": [{"axes": [{"key": "params.width", "values": [8, 16]}, {"key": "params.depth", "values": [2, 1]}]}])"));
  ASSERT_EQ(study.cells.size(), 2u);
  EXPECT_EQ(Param(study.cells[1], "width"), 16);
  EXPECT_EQ(Param(study.cells[1], "depth"), 1);
}

TEST(OwnParameters, SelectCellsInExcludeAndBaseline) {
  const std::string matrix =
      R"("matrix": [{"key": "params.dropout", "values": [0.1, 0.5]}, {"key": "params.kind", "values": ["a", "b"]}])";
  const ExpandedStudy study = Expand(Custom(
      matrix +
      R"(, "exclude": [{"params.dropout": 0.5, "params.kind": "b"}], "baseline": {"params.kind": "a"})"));
  EXPECT_EQ(study.cells.size(), 3u);
  EXPECT_EQ(study.excluded.size(), 1u);
  // A fixed parameter is compared cell by cell.
  EXPECT_EQ(Wrong(Custom(R"("exclude": [{"params.x": 1}])", R"("params.x": 1)")).size(), 1u)
      << "all are excluded";
  EXPECT_THAT(Wrong(Custom(matrix + R"(, "baseline": {"params.kind": "c"})")),
              Only("baseline", "no cell has params.kind 'c'; use values of the study, or remove baseline"));
}

TEST(OwnParameters, AreRefusedWithTheFieldAndASuggestion) {
  EXPECT_THAT(Wrong(Custom("", R"("dropout": 0.1)")).front().description,
              HasSubstr("for a parameter of your own write params.dropout"));
  EXPECT_THAT(Wrong(Custom("", R"("param.dropout": 0.1)")),
              Only("fixed.param.dropout", "unknown key 'param.dropout'; did you mean 'params.dropout'?"));
  EXPECT_THAT(Wrong(Custom("", R"("params": 3)")),
              Only("fixed.params",
                   "params takes names of your own; write params: {NAME: VALUE} or params.NAME: VALUE"));
  EXPECT_THAT(Wrong(Custom("", R"("params.a-b": 3)")).front().description,
              HasSubstr("the name 'a-b' in params"));
  EXPECT_THAT(Wrong(Custom("", R"("params.a": [1])")).front().description,
              HasSubstr("params.a must be text"));
  EXPECT_THAT(
      Wrong(Custom("", R"("env.MASTER_PORT": "1")")),
      Only("fixed.env.MASTER_PORT", "scalelab sets the variable MASTER_PORT itself; remove it from env"));
  EXPECT_THAT(Wrong(Custom("", R"("params.lr": 1, "params.LR": 2)")).front().description,
              HasSubstr("differ only in upper and lower case"));
  EXPECT_THAT(Wrong(Custom(R"("matrix": [{"key": "params.a", "values": [1]}])", R"("params.a": 1)")),
              Only("matrix.params.a", "params.a is set in fixed and in matrix; keep one"));
}

TEST(OwnParameters, ChangeTheRecipeOfARunUnlikeVariables) {
  v1::RunSpec a, b;
  for (const char* name : {"x", "y", "z", "w", "v"})
    (*a.mutable_params()->mutable_fields())[name].set_number_value(1);
  for (const char* name : {"v", "w", "z", "y", "x"})
    (*b.mutable_params()->mutable_fields())[name].set_number_value(1);
  EXPECT_EQ(Fingerprint(a), Fingerprint(b)) << "the order of insertion does not matter";
  (*b.mutable_params()->mutable_fields())["x"].set_number_value(2);
  EXPECT_NE(Fingerprint(a), Fingerprint(b));
  EXPECT_TRUE(FindStudyKey("params")->recipe);
  EXPECT_FALSE(FindStudyKey("env")->recipe);
}

TEST(CommandTemplates, MayNameEveryKeyThatARunHas) {
  const ExpandedStudy study = Expand(
      Spec(R"({"study": "s", "fixed": {"engine": "custom", "ranks": 1, "params.dropout": 0.1, "command":
      ["./a", "--lr={learning_rate}", "--drop={params.dropout}", "{seed}", "{warmup_steps}", "${HOME}", "{{x}}"]}})"));
  EXPECT_EQ(study.cells[0].spec.command(1), "--lr={learning_rate}") << "the worker fills in the values";
}

TEST(CommandTemplates, NameUnknownKeysWithASuggestion) {
  EXPECT_THAT(
      Wrong(Spec(
          R"({"study": "s", "fixed": {"engine": "custom", "ranks": 1, "command": ["a", "--lr={learning_rat}"]}})")),
      Only("fixed.command",
           "the template in '--lr={learning_rat}' names the unknown key 'learning_rat'; did you mean "
           "'learning_rate'?"));
  EXPECT_THAT(
      Wrong(
          Spec(
              R"({"study": "s", "fixed": {"engine": "custom", "ranks": 1, "command": ["a", "{params.p}"]}})"))
          .front()
          .description,
      HasSubstr("unknown key 'params.p'; set it in the study, or write {{params.p}} for plain text"));
  EXPECT_EQ(Wrong(Spec(R"({"study": "s", "fixed": {"engine": "custom", "ranks": 1}, "matrix": [
      {"key": "command", "values": [["a"], ["{nothing}"]]}]})"))
                .front()
                .field,
            "matrix.command[1]");
}

TEST(Extract, BecomesParametersOfTheRunAndNeedsOnlyTheExitStatus) {
  const ExpandedStudy study = Expand(Custom(
      R"j("measure": {"extract": [{"metric": "train/loss", "regex": "loss=(.*)", "per": "STEP"},
                                 {"metric": "run/throughput", "regex": "(.*) samples/s", "take": "MEAN"}]})j"));
  const v1::RunSpec& run = study.cells[0].spec;
  EXPECT_EQ(run.success(), "exit_status");
  const auto& loss = run.extract().fields().at("train/loss").struct_value().fields();
  EXPECT_EQ(loss.at("regex").string_value(), "loss=(.*)");
  EXPECT_EQ(loss.at("per").string_value(), "step");
  const auto& speed = run.extract().fields().at("run/throughput").struct_value().fields();
  EXPECT_EQ(speed.at("per").string_value(), "run");
  EXPECT_EQ(speed.at("take").string_value(), "mean");
  EXPECT_EQ(Expand(Custom()).cells[0].spec.success(), "finish");
}

TEST(Extract, IsRefusedWithTheFieldThatIsWrong) {
  const auto wrong = [](const std::string& extract, const std::string& more = "") {
    return Wrong(Custom(R"j("measure": {"extract": [)j" + extract + "]" + more + "}")).front();
  };
  EXPECT_EQ(wrong(R"j({"regex": "(x)"})j").field, "measure.extract[0].metric");
  EXPECT_EQ(wrong(R"j({"metric": "a b", "regex": "(x)"})j").field, "measure.extract[0].metric");
  EXPECT_EQ(wrong(R"j({"metric": "a"})j").field, "measure.extract[0].regex");
  EXPECT_THAT(wrong(R"j({"metric": "a", "regex": "x"})j").description, HasSubstr("no group for the value"));
  EXPECT_THAT(wrong(R"j({"metric": "a", "regex": "(x"})j").description, HasSubstr("regex '(x' is not valid"));
  EXPECT_EQ(wrong(R"j({"metric": "a", "regex": "(?P<step>x)(y)"})j").field, "measure.extract[0].per");
  EXPECT_EQ(wrong(R"j({"metric": "a", "regex": "(x)", "per": "STEP", "take": "MAX"})j").field,
            "measure.extract[0].take");
  EXPECT_EQ(wrong(R"j({"metric": "a", "regex": "(x)"}, {"metric": "a", "regex": "(y)"})j").field,
            "measure.extract[1].metric");
  EXPECT_EQ(wrong(R"j({"metric": "a", "regex": "(x)"})j", R"j(, "success": "FINISH")j").field,
            "measure.success");
  EXPECT_THAT(Wrong(Small(R"j("measure": {"success": "EXIT_STATUS"})j")),
              Only("measure.success", "measure.success is for engine custom, not native/ddp; remove it"));
}

}  // namespace
}  // namespace scalelab
