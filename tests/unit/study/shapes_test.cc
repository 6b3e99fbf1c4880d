#include "study/shapes.h"

#include "study/rules.h"
#include "tests/unit/study/study_spec_builder.h"

namespace scalelab {
namespace {

using testing::ElementsAre;

// Cells of 1, 2 and 4 nodes.
v1::StudySpec ThreeSizes(int allocations, const std::string& more = "") {
  return Small(absl::StrCat(R"("matrix": [{"key": "ranks", "values": [2, 4, 8, 16]}],
      "resources": {"ranks_per_node": 4, "time_seconds": 3600}, "limits": {"concurrent_allocations": )",
                            allocations, "}", more),
               R"("train_samples": 16000, "epochs": 1)");
}

std::vector<int> Nodes(const v1::StudySpec& spec) {
  const auto study = ExpandStudy(spec);
  EXPECT_TRUE(study.ok()) << study.status();
  std::vector<int> nodes;
  for (const AllocationShape& shape : study->group.shapes) nodes.push_back(shape.nodes);
  return nodes;
}

TEST(GroupShapes, OneShapeServesAllCellsUnlessEachSizeMayHaveAnAllocation) {
  EXPECT_THAT(Nodes(ThreeSizes(0)), ElementsAre(4));
  EXPECT_THAT(Nodes(ThreeSizes(2)), ElementsAre(4));
  EXPECT_THAT(Nodes(ThreeSizes(3)), ElementsAre(4, 2, 1));
  EXPECT_THAT(Nodes(ThreeSizes(8)), ElementsAre(4, 2, 1));
  EXPECT_THAT(Nodes(ThreeSizes(8, R"(, "allocation": "PER_RUN")")), ElementsAre(4));
}

TEST(GroupShapes, AllocationsOfOneNodeAreAsLargeAsTheirLargestCell) {
  v1::StudySpec spec = ThreeSizes(3);
  spec.mutable_matrix(0)->clear_values();
  for (const int ranks : {1, 2, 16}) spec.mutable_matrix(0)->add_values()->set_number_value(ranks);
  const auto study = ExpandStudy(spec);
  ASSERT_TRUE(study.ok()) << study.status();
  ASSERT_EQ(study->group.shapes.size(), 2u);
  EXPECT_EQ(study->group.shapes[0].ranks_per_node, 4);
  EXPECT_EQ(study->group.shapes[1].nodes, 1);
  EXPECT_EQ(study->group.shapes[1].ranks_per_node, 2);
}

TEST(GroupShapes, ManyShortAllocationsCostMoreThanOneLargeOne) {
  v1::StudySpec spec = ThreeSizes(3);
  // This is shorter than the two additional minutes of each allocation.
  spec.mutable_resources()->set_time_seconds(60);
  EXPECT_THAT(Nodes(spec), ElementsAre(4));
}

TEST(GroupShapes, CostsAreTheNodesTimesTheTimesOfTheRuns) {
  const auto strong = ExpandStudy(ThreeSizes(0));
  ASSERT_TRUE(strong.ok()) << strong.status();
  EXPECT_EQ(strong->group.sizes, 3);
  EXPECT_DOUBLE_EQ(strong->group.largest_node_hours, 4 * 62 / 60.0);
  // The samples of a rank are in the ratio 8:4:2:1 for 2, 4, 8 and 16 ranks. So the sizes take 48, 8 and 4 of the 60 minutes.
  EXPECT_NEAR(strong->group.own_node_hours, (1 * 50 + 2 * 10 + 4 * 6) / 60.0, 1e-9);
  const auto weak = ExpandStudy(ThreeSizes(
      0, R"(, "scaling": {"mode": "WEAK", "batch_per_rank": 10}, "measure": {"warmup_steps": 0})"));
  ASSERT_TRUE(weak.ok()) << weak.status();
  EXPECT_NEAR(weak->group.own_node_hours, strong->group.own_node_hours, 1e-9) << "an epoch is as large";
}

TEST(ShapeWithNodes, FindsTheSmallestShapeThatIsLargeEnough) {
  const std::vector<AllocationShape> shapes = {{8}, {4}, {1}};
  EXPECT_EQ(ShapeWithNodes(shapes, 1), 2);
  EXPECT_EQ(ShapeWithNodes(shapes, 2), 1);
  EXPECT_EQ(ShapeWithNodes(shapes, 4), 1);
  EXPECT_EQ(ShapeWithNodes(shapes, 8), 0);
  EXPECT_EQ(ShapeWithNodes(shapes, 9), 0);
}

TEST(Limits, AreChecked) {
  EXPECT_THAT(Wrong(Small(R"("limits": {"concurrent_allocations": -1})")),
              Only("limits.concurrent_allocations", "concurrent_allocations must be at least 0, not -1"));
  EXPECT_EQ(Wrong(ThreeSizes(100'001)).front().field, "limits.concurrent_allocations");
}

}  // namespace
}  // namespace scalelab
