// Studies on a real Slurm cluster of four nodes, with real training on real images.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/slurm_service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

class Slurm : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
    ASSERT_EQ(cluster_.Start(), "");
  }

  // Expects that every cell has results of all repeats, and statistics with intervals.
  static void ExpectCurve(const Service& service, const std::string& study, const std::set<int>& ranks,
                          int n) {
    const auto curve = service.Json({"curve", study});
    ASSERT_EQ(curve["series"].size(), 1u) << curve.dump(1);
    std::set<int> seen;
    for (const auto& point : curve["series"][0]["points"]) {
      seen.insert(point["ranks"].get<int>());
      EXPECT_EQ(point["state"], "OK");
      EXPECT_EQ(point["n"], n);
      for (const char* figure : {"throughput", "speedup", "efficiency"}) {
        EXPECT_GT(point[figure]["mean"].get<double>(), 0) << figure;
        EXPECT_LE(point[figure]["low"].get<double>(), point[figure]["mean"].get<double>()) << figure;
        EXPECT_GE(point[figure]["high"].get<double>(), point[figure]["mean"].get<double>()) << figure;
      }
    }
    EXPECT_EQ(seen, ranks);
  }

  static std::string Last(const Service& service, const std::string& study) {
    return service.Run({"run", "list", study}).out + service.log();
  }

  // Waits for a study with one run on two nodes, and sets `attempt` to its only attempt.
  static void WaitForOneAttemptOnTwoNodes(const Service& service, const std::string& study,
                                          nlohmann::json* attempt) {
    ASSERT_EQ(service.WaitFor(study, 180), 0) << Last(service, study);
    const auto runs = service.Runs(study);
    ASSERT_THAT(runs, SizeIs(1));
    const auto attempts = service.Attempts(runs[0]["name"]);
    ASSERT_THAT(attempts, SizeIs(1));
    const std::vector<std::string> nodes = attempts[0]["nodes"];
    ASSERT_THAT(nodes, SizeIs(2));
    ASSERT_NE(nodes[0], nodes[1]);
    *attempt = attempts[0];
  }

  // Returns the output of a rank.
  static std::string OutputOf(const nlohmann::json& attempt, int rank) {
    return ReadFile(absl::StrCat(attempt["directory"].get<std::string>(), "/rank-", rank, ".out"));
  }

  // Returns the command that started the ranks.
  static std::vector<std::string> LaunchCommand(const nlohmann::json& attempt) {
    return nlohmann::json::parse(
        ReadFile(attempt["directory"].get<std::string>() + "/launch.json"))["commands"][0]["argv"];
  }

  DevCluster cluster_{{"-n", "4"}};
};

TEST_F(Slurm, OneJobServesAStudyOnOneTwoAndFourNodes) {
  SlurmService service(cluster_);
  ASSERT_EQ(service.Start(), "");
  const std::string study =
      service.Submit(ClusterStudy("ranks: [1, 2, 4]", 2, 12, "resources: {ranks_per_node: 1}\n"));
  ASSERT_EQ(service.WaitFor(study, 180), 0) << Last(service, study);
  ExpectCurve(service, study, {1, 2, 4}, 2);
  EXPECT_THAT(LostOrDoubled(service, study), IsEmpty());
  for (const auto& run : service.Runs(study)) {
    const auto attempts = service.Attempts(run["name"]);
    ASSERT_EQ(attempts.size(), 1u);
    std::set<std::string> nodes;
    for (const auto& node : attempts[0]["nodes"]) nodes.insert(node);
    EXPECT_THAT(nodes, SizeIs(run["spec"]["ranks"].get<int>())) << attempts[0].dump();
  }
  EXPECT_EQ(service.LeftBehind(4), "");
  EXPECT_THAT(service.JobRecords(), SizeIs(1)) << "one allocation serves all runs";
  EXPECT_THAT(service.JobRecords()[0], HasSubstr("JobState=COMPLETED"));
  EXPECT_EQ(service.Stop(), 0);
}

TEST_F(Slurm, APlanShowsTheScriptAndItsJobAsksForThat) {
  SlurmService service(cluster_, {"--sbatch-option", "comment=lab"});
  ASSERT_EQ(service.Start(), "");
  const std::string file = service.File(
      "plan.yaml",
      ClusterStudy("ranks: [2, 4]", 1, 2,
                   "resources: {ranks_per_node: 2, cpus_per_rank: 2, memory_mib: 4000, time: \"00:05:00\"}\n"
                   "slurm: {sbatch_options: {nice: \"7\"}}\n"));
  const auto plan = service.Json({"study", "plan", file});
  ASSERT_EQ(plan["allocations"].size(), 1u);
  const std::string script = plan["allocations"][0]["script"];
  for (const char* line :
       {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=2\n", "#SBATCH --cpus-per-task=2\n",
        "#SBATCH --mem=4000M\n", "#SBATCH --time=0-00:05:00\n", "#SBATCH --nice=7\n"}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  const auto submitted = service.Run({"study", "submit", file});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  std::string job;
  ASSERT_TRUE(Eventually([&] {
    job = cluster_.Run({"scontrol", "show", "job", "-o"}).out;
    return absl::StrContains(job, "JobId=");
  }));
  for (const char* fact :
       {"NumNodes=2", "NumCPUs=8 ", "MinMemoryNode=4000M", "TimeLimit=00:05:00", "Nice=7", "Comment=lab"}) {
    EXPECT_THAT(job, HasSubstr(fact));
  }
  EXPECT_EQ(service.WaitFor("last", 180), 0);
  for (const auto& run : service.Runs("last")) {
    EXPECT_THAT(service.Attempts(run["name"]), SizeIs(1)) << "a rank crashed, probably in MPI_Init";
  }
}

TEST_F(Slurm, ARankFindsTheSecretInNoEnvironmentOnItsNode) {
  SlurmService service(cluster_);
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(
      "study: secret\nfixed:\n  engine: custom\n  ranks: 2\n  command: [sh, -c, \"grep -l -z "
      "SCALELAB_ALLOCATION_SECRET=. /proc/[0-9]*/environ; echo searched; echo "
      "'{\\\"time\\\":1,\\\"event\\\":\\\"finish\\\"}' >>$SCALELAB_EVENTS\"]\n"
      "resources: {ranks_per_node: 1, time: 5m}\n");
  ASSERT_EQ(service.WaitFor(study, 120), 0) << Last(service, study);
  const std::string directory = service.Attempts(service.Runs(study)[0]["name"])[0]["directory"];
  for (const char* file : {"/rank-0.out", "/rank-1.out"}) EXPECT_EQ(ReadFile(directory + file), "searched\n");
}

// Two ranks that meet at MASTER_ADDR and MASTER_PORT and exchange a number in each step. The script needs only
// Python's standard library.
constexpr char kExchange[] = R"(import json, os, socket, time

rank, world, host = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), socket.gethostname()
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

def meet():
    if rank == 0:
        with socket.create_server(place) as server:
            server.settimeout(60)
            return server.accept()[0]
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(place, timeout=60)
        except ConnectionRefusedError:  # rank 0 does not listen yet
            if time.monotonic() > end:
                raise
            time.sleep(0.05)

def exchange(text):
    connection.sendall(f"{text}\n".encode())
    return lines.readline().strip()

def report(**event):
    with open(os.environ["SCALELAB_EVENTS"], "a") as file:
        file.write(json.dumps({"time": time.time(), **event}, separators=(",", ":")) + "\n")

connection = meet()
connection.settimeout(60)
lines = connection.makefile("r")
print(f"rank {rank} of {world} on {host} met", exchange(f"{rank} of {world} on {host}"))
report(event="start", world_size=world, rank=rank, total_steps=20)
for step in range(20):
    report(event="step", step=step, metrics={"step/total_s": 0.1, "sum": rank + 1 + int(exchange(rank + 1))})
report(event="finish", metrics={})
)";

TEST_F(Slurm, LauncherSrunStartsRanksOnTwoNodesThatFindEachOther) {
  SlurmService service(cluster_);
  ASSERT_EQ(service.Start(), "");
  service.File("exchange.py", kExchange);
  const std::string study = service.Submit(
      "study: srun\nfixed: {engine: custom, launcher: srun, ranks: 2, command: [python3, ./exchange.py]}\n"
      "resources: {ranks_per_node: 1, time: 5m}\nretry: {max: 0}\n");
  nlohmann::json attempt;
  ASSERT_NO_FATAL_FAILURE(WaitForOneAttemptOnTwoNodes(service, study, &attempt));
  const std::vector<std::string> nodes = attempt["nodes"];
  EXPECT_EQ(OutputOf(attempt, 0),
            absl::StrCat("rank 0 of 2 on ", nodes[0], " met 1 of 2 on ", nodes[1], "\n"));
  EXPECT_EQ(OutputOf(attempt, 1),
            absl::StrCat("rank 1 of 2 on ", nodes[1], " met 0 of 2 on ", nodes[0], "\n"));
  EXPECT_THAT(LaunchCommand(attempt), Not(Contains(StartsWith("--mpi"))))
      << "the MPI type is that of the site";
  for (const char* rank : {"0,", "1,"}) {
    EXPECT_THAT(service.Points(service.Runs(study)[0]["name"]),
                Contains(AllOf(StartsWith(rank), HasSubstr(",sum,3"))).Times(20))
        << "rank " << rank;
  }
  EXPECT_THAT(LostOrDoubled(service, study), IsEmpty());
  EXPECT_EQ(service.LeftBehind(4), "");
}

// Ranks that meet with the variables of torchrun, as in PyTorch's tutorials. In each step, they add their numbers.
constexpr char kAllReduce[] = R"(import json, os, socket, time, torch, torch.distributed as dist

def report(**event):
    with open(os.environ["SCALELAB_EVENTS"], "a") as file:
        file.write(json.dumps({"time": time.time(), **event}, separators=(",", ":")) + "\n")

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world} on {socket.gethostname()}, local rank {os.environ['LOCAL_RANK']}", flush=True)
report(event="start", world_size=world, rank=rank, total_steps=20)
for step in range(20):
    total = torch.ones(1) * (rank + 1)
    dist.all_reduce(total)
    report(event="step", step=step, metrics={"step/total_s": 0.1, "sum": int(total.item())})
report(event="finish", metrics={})
dist.destroy_process_group()
)";

TEST_F(Slurm, LauncherTorchrunStartsRanksOnTwoNodesThatFindEachOther) {
  // torchrun of Debian 12's PyTorch 1.13 does not work with its Python 3.11.
  const Output found = RunProgram({"sh", "-c",
                                   "ls ${SCALELAB_FRAMEWORKS:-${XDG_DATA_HOME:-$HOME/.local/share}/scalelab/"
                                   "frameworks}/pytorch2/bin/python"});
  const std::string python = found.out.substr(0, found.out.find('\n'));
  if (found.code != 0) GTEST_SKIP() << "there is no PyTorch 2; deploy/frameworks pytorch2 installs it";
  SlurmService service(cluster_);
  ASSERT_EQ(service.Start(), "");
  service.File("reduce.py", kAllReduce);
  const std::string study = service.Submit(
      absl::StrCat("study: torchrun\nfixed: {engine: custom, launcher: torchrun, ranks: 4, command: [",
                   python, ", ./reduce.py]}\nresources: {ranks_per_node: 2, time: 5m}\nretry: {max: 0}\n"));
  nlohmann::json attempt;
  ASSERT_NO_FATAL_FAILURE(WaitForOneAttemptOnTwoNodes(service, study, &attempt));
  EXPECT_THAT(LaunchCommand(attempt),
              AllOf(Contains("--node"), Contains("torch.distributed.run"), Contains("--nnodes=2")));
  const std::vector<std::string> points = service.Points(service.Runs(study)[0]["name"]);
  for (const int rank : {0, 1, 2, 3}) {
    // PyTorch may print lines of its own.
    EXPECT_THAT(OutputOf(attempt, rank), HasSubstr(absl::StrCat("rank ", rank, " of 4 on ",
                                                                attempt["nodes"][rank / 2].get<std::string>(),
                                                                ", local rank ", rank % 2, "\n")));
    EXPECT_THAT(points, Contains(AllOf(StartsWith(absl::StrCat(rank, ",")), HasSubstr(",sum,10"))).Times(20))
        << "rank " << rank;
  }
  EXPECT_THAT(LostOrDoubled(service, study), IsEmpty());
  EXPECT_EQ(service.LeftBehind(4), "");
}

// On Slurm, srun with PMIx starts the ranks in place of mpirun. Each rank of this program sends a message to the
// next one before it prints its line.
TEST_F(Slurm, LauncherMpirunStartsRanksOnTwoNodesThatFindEachOther) {
  if (RunProgram({"sh", "-c", "command -v mpirun"}).code != 0)
    GTEST_SKIP() << "mpirun is not installed; deploy/setup installs openmpi-bin";
  SlurmService service(cluster_);
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(absl::StrCat(
      "study: mpirun\nfixed: {engine: custom, launcher: mpirun, ranks: 4, command: [", SCALELAB_MPI_RING,
      "]}\nresources: {ranks_per_node: 2, time: 5m}\nretry: {max: 0}\nmeasure: {success: exit_status, "
      "extract: [{metric: size, regex: 'rank [0-9]+ of ([0-9]+)'}]}\n"));
  nlohmann::json attempt;
  ASSERT_NO_FATAL_FAILURE(WaitForOneAttemptOnTwoNodes(service, study, &attempt));
  EXPECT_THAT(LaunchCommand(attempt), Contains("--mpi=pmix"));
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_EQ(OutputOf(attempt, rank),
              absl::StrCat("rank ", rank, " of 4 on ", attempt["nodes"][rank / 2].get<std::string>(), "\n"));
  }
  EXPECT_EQ(service.LeftBehind(4), "");
}

TEST_F(Slurm, AnAllocationForEachRun) {
  SlurmService service(cluster_);
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(
      ClusterStudy("ranks: [1, 4]", 2, 8, "resources: {ranks_per_node: 1}\nallocation: per-run\n"));
  ASSERT_EQ(service.WaitFor(study, 240), 0) << Last(service, study);
  ExpectCurve(service, study, {1, 4}, 2);
  EXPECT_THAT(LostOrDoubled(service, study), IsEmpty());
  EXPECT_EQ(service.LeftBehind(4), "");
  EXPECT_THAT(service.JobRecords(), SizeIs(4));
}

TEST_F(Slurm, TwoRanksOnEachNode) {
  SlurmService service(cluster_);
  ASSERT_EQ(service.Start(), "");
  const std::string study =
      service.Submit(ClusterStudy("ranks: [1, 2, 4]", 2, 8, "resources: {ranks_per_node: 2}\n"));
  ASSERT_EQ(service.WaitFor(study, 180), 0) << Last(service, study);
  ExpectCurve(service, study, {1, 2, 4}, 2);
  EXPECT_THAT(LostOrDoubled(service, study), IsEmpty());
  EXPECT_EQ(service.LeftBehind(4), "");
  EXPECT_THAT(service.JobRecords(), SizeIs(1));
}

TEST_F(Slurm, EnginesPrecisionsAndBackendsAreSeriesOfOneCurveAndTrainTheSame) {
  SlurmService service(cluster_);
  ASSERT_EQ(service.Start(), "");
  // Without random augmentation and batch statistics, all runs compute the same sums except for rounding. The rate is so
  // small because the model, without normalisation, has large gradients; with 0.02, the losses are NaN from the third step on.
  const std::string study = service.Submit(
      absl::StrCat("study: engines\nfixed: {model: resnet8, dataset: cifar10, data_dir: ", ShippedData(),
                   ", epochs: 1, max_steps: 5, augment: false, batch_norm: eval}\n"
                   "matrix: {engine: [native/ddp, native/horovod], precision: [fp32, amp-bf16], "
                   "backend: [mpi, gloo], ranks: [1, 2]}\nseed: 3\nlr: {base: 2e-7, rule: constant}\n"
                   "scaling: {mode: strong, global_batch: 32}\nmeasure: {evaluate: false}\n"
                   "resources: {ranks_per_node: 1}\n"));
  ASSERT_EQ(service.WaitFor(study, 300), 0) << Last(service, study);
  std::set<std::string> series;
  const auto curve = service.Json({"curve", study});
  for (const auto& one : curve["series"]) {
    for (const auto& point : one["points"]) EXPECT_EQ(point["state"], "OK") << point.dump();
    EXPECT_THAT(one["points"], SizeIs(2));
    series.insert(one["key"].dump());
  }
  EXPECT_THAT(series, SizeIs(8));
  EXPECT_THAT(LostOrDoubled(service, study), IsEmpty());

  std::map<std::string, std::vector<double>> alone;  // by precision
  for (const auto& run : service.Runs(study)) {
    if (run["spec"]["ranks"] == 1) alone[run["spec"]["precision"]] = Losses(service, run);
  }
  for (const auto& run : service.Runs(study)) {
    // Tolerances for the losses of five steps, because the order of additions differs. bf16 has
    // only eight bits.
    const std::string precision = run["spec"]["precision"];
    const double order = precision == "fp32" ? 1e-4 : 1e-2;
    EXPECT_LT(LargestDeviation(Losses(service, run), alone[precision]), order) << run.dump();
  }
  // The model has no normalisation layers, so rounding errors grow from layer to layer.
  EXPECT_LT(LargestDeviation(alone["amp-bf16"], alone["fp32"]), 0.15);
}

TEST_F(Slurm, CancellingAStudyGivesItsJobBackWithinTenSeconds) {
  SlurmService service(cluster_);
  ASSERT_EQ(service.Start(), "");
  const std::string study =
      service.Submit(ClusterStudy("ranks: [4]", 2, 100'000, "resources: {ranks_per_node: 1}\n"));
  service.WaitUntilTraining(study);
  ASSERT_EQ(service.Run({"study", "cancel", study}).code, 0);
  EXPECT_EQ(service.LeftBehind(4, 10), "");
  EXPECT_EQ(service.WaitFor(study, 20), 5);
  EXPECT_THAT(LostOrDoubled(service, study), IsEmpty());
}

TEST(SlurmContract, HoldsOverARealSlurm) {
  if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
  DevCluster cluster({"-n", "1"});
  ASSERT_EQ(cluster.Start(), "");
  const Output contract =
      cluster.Run({SCALELAB_SCHEDULER_CONTRACT_TEST, "--gtest_filter=*/slurm_cluster"}, 300);
  EXPECT_EQ(contract.code, 0) << contract.out << contract.err;
  EXPECT_THAT(contract.out, HasSubstr("Kinds/SchedulerContract.AJobRunsAndCompletes/slurm_cluster"));
}

// Returns the placement of the ranks on node 1, one line per rank: LOCAL_RANK, GPUs, processors.
std::vector<std::string> Placement(const DevCluster& cluster) {
  const Output out = cluster.RunOn(1, {"bash", "-c", R"(
    for process in /proc/[0-9]*; do
      [[ $(<"$process/comm") == scalelab-train* ]] || continue
      variables=$(tr '\0' '\n' <"$process/environ" | grep -E '^(LOCAL_RANK|CUDA_VISIBLE_DEVICES)=' | sort -r | cut -d= -f2)
      echo $variables $(sed -n 's/^Cpus_allowed_list:\s*//p' "$process/status")
    done 2>/dev/null | sort)"});
  return absl::StrSplit(out.out, '\n', absl::SkipEmpty());
}

TEST(SlurmBinding, EachRankHasItsOwnCoresAndSeesTheGpusOfItsNode) {
  if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two processors";
  DevCluster cluster({"-n", "1", "--cpus", "2", "--gpus", "2", "--bind"});
  ASSERT_EQ(cluster.Start(), "");
  SlurmService service(cluster);
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(
      ClusterStudy("ranks: [2], device: [cpu]", 1, 100'000,  // nothing computes on the cluster's GPUs
                   "resources: {ranks_per_node: 2, cpus_per_rank: 1, gpus_per_rank: 1}\n"));
  service.WaitUntilTraining(study);
  const std::vector<std::string> placement = Placement(cluster);
  EXPECT_THAT(placement, AnyOf(ElementsAre("0 0,1 0", "1 0,1 1"), ElementsAre("0 0,1 1", "1 0,1 0")));
  ASSERT_EQ(service.Run({"study", "cancel", study}).code, 0);
  EXPECT_EQ(service.LeftBehind(1, 20), "");
}

}  // namespace
}  // namespace scalelab::e2e
