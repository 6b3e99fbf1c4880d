// Checks of a study before it is stored: whether it fits the scheduler, and the plan of its runs.
#include "server/core/submission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/status.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class SizedScheduler final : public Scheduler {
 public:
  explicit SizedScheduler(Capacity capacity) : capacity_(capacity) {}
  std::string name() const override { return "slurm"; }
  Capacity capacity() const override { return capacity_; }
  absl::StatusOr<std::string> Submit(const JobRequest&) override { return "1"; }
  std::string Script(const JobRequest&) const override { return ""; }
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>&) override {
    return std::vector<JobStatus>();
  }
  absl::StatusOr<ClusterView> View() override { return ClusterView{}; }
  absl::Status Cancel(const std::vector<std::string>&) override { return absl::OkStatus(); }

 private:
  const Capacity capacity_;
};

const SizedScheduler kNoGpus(Capacity{8, 4, 0}), kGpus(Capacity{8, 4, 4}), kSilent(Capacity{});

// Backends over 2 ranks with a GPU each.
v1::StudySpec Backends(const std::vector<std::string>& backends) {
  v1::StudySpec spec = World::Spec({2});
  auto* axis = spec.add_matrix();
  axis->set_key("backend");
  for (const std::string& backend : backends) axis->add_values()->set_string_value(backend);
  spec.mutable_resources()->set_gpus_per_rank(1);
  return spec;
}

constexpr char kNoNccl[] =
    "backend nccl needs GPUs, and the slurm scheduler has none; use mpi or gloo with gpus_per_rank: 0";

TEST(CheckStudy, RefusesNcclWhereThereAreNoGpus) {
  const auto refused = CheckStudy(Backends({"nccl"}), kNoGpus);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ViolationsOf(refused.status()), ElementsAre(FieldViolation{"matrix.backend[0]", kNoNccl}));
  EXPECT_TRUE(CheckStudy(Backends({"nccl"}), kGpus).ok());
  EXPECT_TRUE(CheckStudy(Backends({"nccl"}), kSilent).ok()) << "the capacity is not known yet";
}

TEST(CheckStudy, RefusesTheLauncherOfSlurmWithoutSlurm) {
  class LocalScheduler final : public Scheduler {
   public:
    std::string name() const override { return "local"; }
    Capacity capacity() const override { return {8, 1, 0}; }
    absl::StatusOr<std::string> Submit(const JobRequest&) override { return "1"; }
    std::string Script(const JobRequest&) const override { return ""; }
    absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>&) override {
      return std::vector<JobStatus>();
    }
    absl::StatusOr<ClusterView> View() override { return ClusterView{}; }
    absl::Status Cancel(const std::vector<std::string>&) override { return absl::OkStatus(); }
  } local;
  v1::StudySpec spec = World::Spec({2});
  auto& fixed = *spec.mutable_fixed()->mutable_fields();
  fixed["engine"].set_string_value("custom");
  fixed["launcher"].set_string_value("srun");
  fixed["command"].mutable_list_value()->add_values()->set_string_value("true");
  EXPECT_THAT(
      ViolationsOf(CheckStudy(spec, local).status()),
      ElementsAre(FieldViolation{
          "fixed.launcher", "launcher srun needs Slurm, and the scheduler is local; use mpirun or plain"}));
  EXPECT_TRUE(CheckStudy(spec, kNoGpus).ok());
}

TEST(CheckStudy, RefusesMoreRanksThanSlots) {
  const auto refused = CheckStudy(World::Spec({1, 16}), kNoGpus);
  EXPECT_THAT(
      ViolationsOf(refused.status()),
      ElementsAre(FieldViolation{"matrix.ranks[1]",
                                 "ranks: 16 needs 16 slots, the slurm scheduler has 8; use fewer ranks"}));
}

TEST(CheckStudy, LeavesOutWhatDoesNotRunHereWhenTheStudySaysSo) {
  v1::StudySpec spec = World::Spec({1, 2, 16});
  spec.set_on_unusable(v1::StudySpec::EXCLUDE);
  const auto checked = CheckStudy(spec, kNoGpus);
  ASSERT_TRUE(checked.ok()) << checked.status();
  const v1::PlanStudyResponse plan = PlanOf(*checked, kNoGpus);
  EXPECT_EQ(plan.runs(), 2);
  EXPECT_EQ(plan.excluded(), 1);
  EXPECT_THAT(plan.unusable(),
              ElementsAre("ranks: 16 needs 16 slots, the slurm scheduler has 8; use fewer ranks"));
  const NewStudy study = MakeNewStudy(spec, *checked, "ann", "");
  ASSERT_EQ(study.cells.size(), 3u);
  EXPECT_TRUE(study.cells[2].excluded);
  EXPECT_EQ(study.cells[2].ranks, 16);
}

// The study uses native/ddp and pytorch/ddp.
v1::StudySpec TwoEngines() {
  v1::StudySpec spec = World::Spec({2});
  auto* axis = spec.add_matrix();
  axis->set_key("engine");
  for (const char* engine : {"native/ddp", "pytorch/ddp"}) axis->add_values()->set_string_value(engine);
  return spec;
}

FrameworkStates NoTorch() {
  v1::Framework state;
  state.set_engine("pytorch/ddp");
  state.set_reason("cannot import torch");
  state.set_fix("deploy/frameworks pytorch");
  return {{"pytorch/ddp", state}};
}

TEST(CheckStudy, ARunWithGpusNeedsTheEnvironmentForGpus) {
  v1::StudySpec spec = TwoEngines();
  (*spec.mutable_fixed()->mutable_fields())["gpus_per_rank"].set_number_value(1);
  EXPECT_THAT(FrameworkEngines(spec), ElementsAre("pytorch/ddp on GPUs"));
  // Usable on CPUs only.
  v1::Framework usable;
  usable.set_usable(true);
  FrameworkStates states = {{"pytorch/ddp", usable}, {"pytorch/ddp on GPUs", NoTorch()["pytorch/ddp"]}};
  states["pytorch/ddp on GPUs"].set_fix("deploy/frameworks --cuda pytorch");
  EXPECT_THAT(ViolationsOf(CheckStudy(spec, kNoGpus, states).status()),
              testing::Contains(FieldViolation{"matrix.engine[1]",
                                               "engine pytorch/ddp cannot run here: cannot import torch; try "
                                               "deploy/frameworks --cuda pytorch"}));
  // Runs of one study may use both.
  spec.mutable_fixed()->mutable_fields()->erase("gpus_per_rank");
  auto* axis = spec.add_matrix();
  axis->set_key("gpus_per_rank");
  for (int gpus : {0, 1}) axis->add_values()->set_number_value(gpus);
  EXPECT_THAT(FrameworkEngines(spec), ElementsAre("pytorch/ddp", "pytorch/ddp on GPUs"));
}

TEST(CheckStudy, RefusesAnEngineThatCannotRunHere) {
  EXPECT_THAT(FrameworkEngines(TwoEngines()), ElementsAre("pytorch/ddp"));
  const std::string sentence =
      "engine pytorch/ddp cannot run here: cannot import torch; try deploy/frameworks pytorch";
  EXPECT_THAT(ViolationsOf(CheckStudy(TwoEngines(), kNoGpus, NoTorch()).status()),
              ElementsAre(FieldViolation{"matrix.engine[1]", sentence}));
  EXPECT_TRUE(CheckStudy(TwoEngines(), kNoGpus).ok());
  v1::StudySpec spec = TwoEngines();
  spec.set_on_unusable(v1::StudySpec::EXCLUDE);
  const auto checked = CheckStudy(spec, kNoGpus, NoTorch());
  ASSERT_TRUE(checked.ok()) << checked.status();
  const v1::PlanStudyResponse plan = PlanOf(*checked, kNoGpus);
  EXPECT_EQ(plan.runs(), 1);
  EXPECT_THAT(plan.unusable(), ElementsAre(sentence));
}

TEST(CheckStudy, PlansTheRunsThatCommunicationIsMeasuredWith) {
  v1::StudySpec spec = World::Spec({1, 2, 4}, 3);
  spec.mutable_measure()->set_communication(true);
  const auto checked = CheckStudy(spec, kNoGpus);
  ASSERT_TRUE(checked.ok()) << checked.status();
  const v1::PlanStudyResponse plan = PlanOf(*checked, kNoGpus);
  EXPECT_EQ(plan.cells_size(), 3);
  EXPECT_EQ(plan.runs(), 9);
  EXPECT_EQ(plan.baseline_runs(), 12);
  EXPECT_EQ(plan.allocations(0).runs(), 21);
  EXPECT_THAT(plan.unusable(), IsEmpty());
  const NewStudy study = MakeNewStudy(spec, *checked, "ann", "");
  ASSERT_EQ(study.cells.size(), 7u);
  EXPECT_EQ(study.state->runs.size(), 21u);
  EXPECT_EQ(study.cells[3].engine, "native/none");
  EXPECT_FALSE(study.cells[3].excluded);
  EXPECT_TRUE(study.state->cells.Spec(3).communication_baseline());
}

TEST(CheckStudy, PlansTheAllocationsOfAGroupAndTheirNodeHours) {
  v1::StudySpec spec = World::Spec({2, 4}, 3);
  spec.mutable_resources()->set_ranks_per_node(2);
  spec.mutable_resources()->set_gpus_per_rank(1);
  const auto plan = [&](int most) {
    spec.mutable_limits()->set_concurrent_allocations(most);
    const auto checked = CheckStudy(spec, kSilent);
    EXPECT_TRUE(checked.ok()) << checked.status();
    return PlanOf(*checked, kSilent);
  };
  const auto nodes_and_runs = [](const v1::PlanStudyResponse& plan) {
    std::vector<std::pair<int, int>> found;
    for (const auto& allocation : plan.allocations())
      found.emplace_back(allocation.nodes(), allocation.runs());
    return found;
  };
  using Pairs = std::vector<std::pair<int, int>>;
  EXPECT_EQ(nodes_and_runs(plan(0)), (Pairs{{2, 6}}));
  EXPECT_EQ(nodes_and_runs(plan(2)), (Pairs{{2, 3}, {1, 3}}));
  EXPECT_EQ(nodes_and_runs(plan(3)), (Pairs{{2, 2}, {1, 3}, {2, 1}}));
  EXPECT_EQ(nodes_and_runs(plan(9)), (Pairs{{2, 1}, {1, 1}, {2, 1}, {1, 1}, {2, 1}, {1, 1}}));
  // An hour and two minutes of two nodes. Runs of 2 ranks take two thirds of the hour, because each rank processes twice
  // as many samples: 2 x (20 + 2) + 1 x (40 + 2) minutes.
  EXPECT_DOUBLE_EQ(plan(0).node_hours_largest(), 2 * 62 / 60.0);
  EXPECT_DOUBLE_EQ(plan(0).node_hours_own(), 86 / 60.0);
  EXPECT_EQ(plan(0).own_sizes(), 2);
  EXPECT_EQ(plan(2).own_sizes(), 2);
  EXPECT_DOUBLE_EQ(plan(2).gpu_hours(), 4 + 2);
}

}  // namespace
}  // namespace scalelab::server
