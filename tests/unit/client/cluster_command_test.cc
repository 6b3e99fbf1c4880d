// `cluster`.
#include "tests/unit/client/client_fixture.h"

namespace scalelab::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ClusterState : public ClientTest {
 protected:
  void SetUp() override { Start(); }
};

TEST_F(ClusterState, TheDrainStateHasItsReason) {
  EXPECT_THAT(Run({"cluster"}).out, Not(HasSubstr("drained")));
  server_.cluster.mutable_drain_time()->set_seconds(1'795'000'000);
  EXPECT_THAT(Run({"cluster"}).out, HasSubstr("no run begins since 2026-11-18"));
  server_.cluster.set_drain_reason("new switch");
  EXPECT_THAT(Run({"cluster"}).out, HasSubstr(": new switch"));
}

TEST_F(ClusterState, AvoidedNodesHaveReasonAndEnd) {
  EXPECT_THAT(Run({"cluster"}).out, Not(HasSubstr("Avoided nodes")));
  auto& node = *server_.cluster.add_avoided_nodes();
  node.set_name("n7");
  node.set_failures(3);
  node.set_reason("the node failed: NODE_FAIL");
  node.mutable_since_time()->set_seconds(1'795'000'000);
  node.mutable_until_time()->set_seconds(1'795'001'800);
  EXPECT_THAT(Run({"cluster"}).out,
              AllOf(HasSubstr("Avoided nodes"), HasSubstr("n7"), HasSubstr("the node failed: NODE_FAIL")));
  EXPECT_THAT(Run({"cluster", "-o", "json"}).out, HasSubstr("\"avoided_nodes\""));
}

}  // namespace
}  // namespace scalelab::client
