#include "server/scheduler/slurm_view.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Output of Slurm 22.05.8 for kSinfoColumns.
constexpr char kReal[] =
    "b1|main*|up|2:00:00|draining|1/0/7/8|8000|gpu:a100:2(S:0-1),shard:8|gpu:a100:1(IDX:0)|bad | disk, see "
    "#12\n"
    "b1|long|up|infinite|draining|1/0/7/8|8000|gpu:a100:2(S:0-1),shard:8|gpu:a100:1(IDX:0)|bad | disk, see "
    "#12\n"
    "b2|main*|up|2:00:00|idle|0/8/0/8|8000|gpu:2|gpu:0|none\n"
    "b2|long|up|infinite|idle|0/8/0/8|8000|gpu:2|gpu:0|none\n"
    "b3|main*|up|2:00:00|down*|0/0/4/4|4000|(null)|gpu:0|Not responding\n"
    "|empty|inact|1:00:00|n/a|0/0/0/0|0|(null)|(null)|none\n";

ClusterView View(const std::string& text = kReal) {
  const absl::StatusOr<ClusterView> view = ParseView(text);
  EXPECT_TRUE(view.ok()) << view.status();
  return view.value_or(ClusterView());
}

TEST(SlurmView, ParsesNodesAndPartitions) {
  const ClusterView view = View();
  ASSERT_EQ(view.partitions.size(), 3u);
  EXPECT_EQ(view.partitions[0].name, "empty");
  EXPECT_EQ(view.partitions[0].nodes, 0);
  EXPECT_EQ(view.partitions[0].state, "INACT");
  EXPECT_EQ(view.partitions[1].name, "long");
  EXPECT_EQ(view.partitions[1].max_time, absl::InfiniteDuration());
  EXPECT_FALSE(view.partitions[1].is_default);
  EXPECT_EQ(view.partitions[2].name, "main");
  EXPECT_TRUE(view.partitions[2].is_default);
  EXPECT_EQ(view.partitions[2].max_time, absl::Hours(2));
  EXPECT_EQ(view.partitions[2].nodes, 3);
  EXPECT_EQ(view.partitions[2].idle_nodes, 1);
  ASSERT_EQ(view.nodes.size(), 3u);
  const ClusterView::Node& drained = view.nodes[0];
  EXPECT_EQ(drained.name, "b1");
  EXPECT_THAT(drained.partitions, ElementsAre("long", "main"));
  EXPECT_EQ(drained.state, "DRAINING");
  EXPECT_EQ(drained.reason, "bad | disk, see #12");
  EXPECT_EQ(drained.cpus, 8);
  EXPECT_EQ(drained.cpus_allocated, 1);
  EXPECT_EQ(drained.memory_mib, 8000);
  EXPECT_EQ(drained.gpus, 2);
  EXPECT_EQ(drained.gpus_allocated, 1);
  EXPECT_EQ(view.nodes[1].reason, "");
  EXPECT_EQ(view.nodes[2].state, "DOWN");
  EXPECT_EQ(view.nodes[2].gpus, 0);
}

TEST(SlurmView, ANodeThatDoesNotRespondIsNotIdle) {
  const ClusterView view = View(
      "b1|main*|up|infinite|idle*|0/8/0/8|8000|(null)|gpu:0|none\n"
      "b2|main*|up|infinite|idle~|0/8/0/8|8000|(null)|gpu:0|none\n");
  EXPECT_EQ(view.nodes[0].state, "IDLE");
  EXPECT_FALSE(view.nodes[0].responds);
  EXPECT_EQ(view.nodes[0].reason, "it does not respond");
  EXPECT_TRUE(view.nodes[1].responds);
  EXPECT_EQ(view.partitions[0].idle_nodes, 1);
}

TEST(SlurmView, CapacityCountsANodeOnce) {
  const Capacity capacity = CapacityOf(View());
  EXPECT_EQ(capacity.slots, 20);
  EXPECT_EQ(capacity.slots_per_node, 8);
  EXPECT_EQ(capacity.gpus, 4);
  EXPECT_EQ(CapacityOf({}).slots, 0);
}

TEST(SlurmView, IgnoresStrayLinesAndRejectsOtherOutput) {
  EXPECT_EQ(ParseView("no such thing\n\x01\n").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(
      View(absl::StrCat("a stray line\n", kReal, "b9|main*|up|soon|idle|1/1|x|y|z|none\n")).nodes.size(), 3u);
  EXPECT_TRUE(View("").nodes.empty());
}

absl::Status Fits(int nodes, int ranks, int gpus, const std::string& partition, long memory = 0) {
  JobRequest request;
  request.nodes = nodes;
  request.ranks_per_node = ranks;
  request.gpus_per_rank = gpus;
  request.partition = partition;
  request.memory_mib = memory;
  return CheckFits(View(), request);
}

TEST(SlurmView, RefusesJobsThatNoNodesCouldRun) {
  EXPECT_TRUE(Fits(3, 4, 0, "").ok());  // nodes that are down, such as b3, count too
  EXPECT_TRUE(Fits(2, 8, 0, "").ok());
  EXPECT_TRUE(Fits(2, 2, 1, "long").ok());
  EXPECT_THAT(Fits(4, 1, 0, "").message(),
              AllOf(HasSubstr("4 nodes with 1 rank"), HasSubstr("main has 3 nodes")));
  EXPECT_THAT(Fits(3, 8, 0, "").message(), HasSubstr("of which 2 are large enough"));
  EXPECT_FALSE(Fits(3, 1, 1, "").ok());
  EXPECT_FALSE(Fits(1, 3, 1, "").ok());
  EXPECT_FALSE(Fits(3, 1, 0, "", 8000).ok());
  EXPECT_FALSE(Fits(3, 1, 0, "long").ok());
  EXPECT_TRUE(Fits(3, 1, 0, "long,main").ok());  // any of them
  EXPECT_FALSE(Fits(1, 1, 0, "empty").ok());
  EXPECT_TRUE(Fits(9, 1, 0, "hidden").ok());  // Slurm decides
  EXPECT_TRUE(CheckFits({}, JobRequest()).ok());
}

}  // namespace
}  // namespace scalelab::server
