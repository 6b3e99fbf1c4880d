// `study explain`, `run explain` and `cluster`: their output at a fixed time.
#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "tests/unit/client/client_fixture.h"
#include "tests/unit/client/golden.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Allocation;
using scalelab::v1::Node;
using scalelab::v1::Reason;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using RunMessage = scalelab::v1::Run;  // the fixture has a function Run

class ExplainCommands : public ClientTest {
 protected:
  void SetUp() override {
    Start();
    server_.studies = {MakeStudy(7, "resnet20-strong", scalelab::v1::Study::QUEUED, 9, 0, 0)};
    RunMessage& run = server_.runs.emplace_back();
    run.set_name("studies/7/runs/12");
    run.set_state(RunMessage::QUEUED);
    (*run.mutable_key()->mutable_fields())["ranks"].set_number_value(4);
    Add(Reason::SCHEDULER_AWAY, "the scheduler does not answer: squeue timed out", "", 90, 15);
    Add(Reason::SCHEDULER_PENDING, "job 4711 waits at the scheduler: Resources", "allocations/abc", 200);
    Add(Reason::STUDY_ORDER, "3 queued runs of its study go first", "studies/7/runs/9");
  }
  void Add(Reason::Kind kind, const std::string& message, const std::string& subject, int since = 0,
           int next = 0) {
    Reason& reason = server_.reasons.emplace_back();
    reason.set_kind(kind);
    reason.set_message(message);
    reason.set_subject(subject);
    if (since > 0) reason.mutable_since_time()->set_seconds(absl::ToUnixSeconds(now_) - since);
    if (next > 0) reason.mutable_next_try_time()->set_seconds(absl::ToUnixSeconds(now_) + next);
  }
};

TEST_F(ExplainCommands, AStudysReasonsAreNumberedSentences) {
  const Outcome outcome = Run({"study", "explain", "last"});
  EXPECT_THAT(outcome, Exits(ExitCode::kOk));
  ExpectGolden("study_explain.txt", outcome.out);
}

TEST_F(ExplainCommands, ARunsReasonsInWideTablesNameKindAndSubject) {
  const Outcome outcome = Run({"run", "explain", "12", "-o", "wide"});
  EXPECT_THAT(outcome, Exits(ExitCode::kOk));
  ExpectGolden("run_explain_wide.txt", outcome.out);
}

TEST_F(ExplainCommands, ASentenceIsNotCutOnANarrowTerminal) {
  Terminal terminal;
  terminal.tty = true;
  terminal.width = 40;
  EXPECT_THAT(Run({"run", "explain", "12"}, terminal).out,
              HasSubstr("the scheduler does not answer: squeue timed out\n"));
}

TEST_F(ExplainCommands, CsvHasOneLineAReason) {
  EXPECT_EQ(Run({"run", "explain", "12", "-o", "csv"}).out,
            "kind,subject,message,since_time,next_try_time\n"
            "scheduler_away,,the scheduler does not answer: squeue timed out,2026-11-18T11:08:30Z,"
            "2026-11-18T11:10:15Z\n"
            "scheduler_pending,allocations/abc,job 4711 waits at the scheduler: Resources,"
            "2026-11-18T11:06:40Z,\n"
            "study_order,studies/7/runs/9,3 queued runs of its study go first,,\n");
}

TEST_F(ExplainCommands, JsonIsTheAnswerOfTheApi) {
  const auto study = nlohmann::json::parse(Run({"study", "explain", "7", "-o", "json"}).out);
  EXPECT_EQ(study["study"]["name"], "studies/7");
  ASSERT_EQ(study["reasons"].size(), 3U);
  EXPECT_EQ(study["reasons"][0]["kind"], "SCHEDULER_AWAY");
  EXPECT_EQ(study["reasons"][0]["next_try_time"], "2026-11-18T11:10:15Z");
  EXPECT_EQ(nlohmann::json::parse(Run({"run", "explain", "12", "-o", "json"}).out)["run"]["state"], "QUEUED");
}

TEST_F(ExplainCommands, ClocksThatDifferGiveNoNegativeTimes) {
  now_ -= absl::Minutes(10);
  EXPECT_THAT(Run({"run", "explain", "12"}).out, AllOf(HasSubstr("0.0s"), Not(HasSubstr("-"))));
  now_ += absl::Minutes(20);
  EXPECT_THAT(Run({"run", "explain", "12"}).out, HasSubstr("in 0.0s"));
}

TEST_F(ExplainCommands, WhatIsNotThereAndWhatIsNoNameAreErrors) {
  EXPECT_THAT(Run({"run", "explain", "99"}), Exits(ExitCode::kFailure));
  EXPECT_THAT(Run({"study", "explain", "nobody"}), Exits(ExitCode::kFailure));
  EXPECT_THAT(Run({"run", "explain", "seven"}), Exits(ExitCode::kUsage));
  EXPECT_THAT(Run({"study", "explain"}), Exits(ExitCode::kUsage));
}

class ClusterCommand : public ClientTest {
 protected:
  void SetUp() override {
    Start();
    scalelab::v1::GetClusterResponse& cluster = server_.cluster;
    cluster.set_version("0.1.0");
    cluster.set_scheduler("slurm");
    cluster.set_queued_runs(9);
    cluster.set_running_attempts(1);
    cluster.mutable_start_time()->set_seconds(1'795'000'000);
    auto* partition = cluster.add_partitions();
    partition->set_name("gpu");
    partition->set_is_default(true);
    partition->set_state("UP");
    partition->set_max_time_seconds(7200);
    partition->set_nodes(2);
    AddNode("n1", "MIXED", 3, 1);
    AddNode("n2", "DRAINED", 0, 0)->set_reason("fan broken");
    Allocation* running = AddAllocation("abc", Allocation::RUNNING, "4711");
    running->set_run("studies/7/runs/12");
    running->mutable_start_time()->set_seconds(1'795'000'100);
    running->mutable_end_time()->set_seconds(1'795'000'200 + 3725);
    running->add_node_names("n1");
    running->add_node_names("n2");
    AddAllocation("def", Allocation::PENDING, "4712")->set_reason("Resources");
    for (const char* node : {"n1", "n2"}) {
      auto* worker = cluster.add_workers();
      worker->set_node(node);
      worker->set_allocation("allocations/abc");
      worker->set_version("0.1.0");
      worker->set_cpus(8);
      worker->add_gpus("NVIDIA A100");
      worker->mutable_last_seen_time()->set_seconds(1'795'000'200 -
                                                    (*node == 'n' && node[1] == '1' ? 2 : 75));
    }
  }
  Node* AddNode(const std::string& name, const std::string& state, int cpus, int gpus) {
    Node* node = server_.cluster.add_nodes();
    node->set_name(name);
    node->add_partitions("gpu");
    node->set_state(state);
    node->set_cpus(8);
    node->set_cpus_allocated(cpus);
    node->set_memory_mib(16'000);
    node->set_gpus(2);
    node->set_gpus_allocated(gpus);
    return node;
  }
  Allocation* AddAllocation(const std::string& token, Allocation::State state, const std::string& job) {
    Allocation* allocation = server_.cluster.add_allocations();
    allocation->set_name("allocations/" + token);
    allocation->set_state(state);
    allocation->set_external_id(job);
    allocation->set_study("studies/7");
    allocation->set_nodes(2);
    allocation->set_slots_per_node(4);
    allocation->mutable_create_time()->set_seconds(1'795'000'050);
    return allocation;
  }
  std::string Table() {
    const Outcome outcome = Run({"cluster"});
    EXPECT_THAT(outcome, Exits(ExitCode::kOk));
    return absl::StrReplaceAll(outcome.out, {{socket_, "unix:SOCKET"}});
  }
};

TEST_F(ClusterCommand, ShowsAllocationsWorkersPartitionsAndNodes) { ExpectGolden("cluster.txt", Table()); }

TEST_F(ClusterCommand, ASchedulerThatIsAwayIsToldWithSinceWhen) {
  server_.cluster.clear_partitions();
  server_.cluster.clear_nodes();
  server_.cluster.clear_allocations();
  server_.cluster.clear_workers();
  server_.cluster.set_scheduler_error("squeue timed out after 20 s");
  server_.cluster.mutable_scheduler_error_time()->set_seconds(1'795'000'000);
  ExpectGolden("cluster_away.txt", Table());
}

TEST_F(ClusterCommand, CsvIsTheAllocations) {
  EXPECT_EQ(Run({"cluster", "-o", "csv"}).out,
            "allocation,state,job,study,nodes,slots/node,run,on,create_time,start_time,end_time,reason\n"
            "abc,running,4711,studies/7,2,4,12,\"n1,n2\",2026-11-18T11:07:30Z,2026-11-18T11:08:20Z,"
            "2026-11-18T12:12:05Z,\n"
            "def,pending,4712,studies/7,2,4,,,2026-11-18T11:07:30Z,,,Resources\n");
}

TEST_F(ClusterCommand, JsonIsTheAnswerOfTheApi) {
  const auto json = nlohmann::json::parse(Run({"cluster", "-o", "json"}).out);
  EXPECT_EQ(json["nodes"][1]["reason"], "fan broken");
  EXPECT_EQ(json["partitions"][0]["max_time_seconds"], "7200");
}

}  // namespace
}  // namespace scalelab::client
