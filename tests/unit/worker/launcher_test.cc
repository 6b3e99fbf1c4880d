#include "worker/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "catalog/engines.h"

namespace scalelab::worker {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::SynchronizeResponse::DesiredAttempt Desired(int ranks, int cpus_per_rank = 1) {
  v1::SynchronizeResponse::DesiredAttempt attempt;
  attempt.set_token("t0");
  attempt.set_directory("/runs/1/2/t0");
  attempt.add_nodes("n0");
  attempt.set_ranks_per_node(ranks);
  attempt.mutable_spec()->set_ranks(ranks);
  attempt.mutable_spec()->set_cpus_per_rank(cpus_per_rank);
  return attempt;
}

LaunchHost Host() {
  LaunchHost host;
  host.environment = {"PATH=/bin", "OMP_NUM_THREADS=64"};
  host.rank_program = "/opt/scalelab-rank";
  host.cpus = 2;
  return host;
}

const RankProgram kTrainer{{"/opt/scalelab-trainer"}, {}, Rendezvous::kMpi};

std::string Line(const Command& command) { return absl::StrJoin(command.argv, " "); }

TEST(PlanLaunch, StartsASingleRankDirectlyWithWhatEveryRankFinds) {
  const auto plan = PlanLaunch(Desired(1), kTrainer, Host());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->launcher, "");
  EXPECT_EQ(plan->tag, "SCALELAB_ATTEMPT=t0");
  ASSERT_EQ(plan->commands.size(), 1u);
  const Command& command = plan->commands[0];
  EXPECT_EQ(Line(command), "/opt/scalelab-trainer");
  EXPECT_EQ(command.directory, "/runs/1/2/t0");
  EXPECT_EQ(command.output, "/runs/1/2/t0/rank-0.out");
  EXPECT_EQ(command.error, "/runs/1/2/t0/rank-0.err");
  EXPECT_THAT(command.environment,
              ElementsAre("PATH=/bin", "SCALELAB_ATTEMPT=t0", "SCALELAB_ATTEMPT_DIR=/runs/1/2/t0",
                          "SCALELAB_SPEC=/runs/1/2/t0/spec.json", "OMP_NUM_THREADS=1", "RANK=0",
                          "LOCAL_RANK=0", "WORLD_SIZE=1", "SCALELAB_EVENTS=/runs/1/2/t0/events-0.jsonl"));
}

TEST(PlanLaunch, StartsSeveralMpiRanksThroughMpirun) {
  const auto plan = PlanLaunch(Desired(2), kTrainer, Host());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->launcher, "mpirun");
  ASSERT_EQ(plan->commands.size(), 1u);
  EXPECT_EQ(Line(plan->commands[0]),
            "mpirun -np 2 --oversubscribe --bind-to none --mca plm isolated --mca btl self,vader "
            "/opt/scalelab-rank /opt/scalelab-trainer");
  EXPECT_EQ(plan->commands[0].error, "/runs/1/2/t0/launcher.err");
  EXPECT_THAT(plan->commands[0].environment, Not(Contains(HasSubstr("yield_when_idle"))));
  EXPECT_THAT(plan->commands[0].environment, Not(Contains(HasSubstr("SCALELAB_RANK_CPUS"))));
}

TEST(PlanLaunch, GivesRanksTheDirectoryOfCheckpointsAndTimeToWriteThem) {
  auto attempt = Desired(2);
  attempt.set_checkpoint_directory("/runs/1/2/checkpoints");
  const auto plan = PlanLaunch(attempt, kTrainer, Host());
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(Line(plan->commands[0]), HasSubstr("--mca odls_base_sigkill_timeout 15 "));
  EXPECT_THAT(plan->commands[0].environment, Contains("SCALELAB_CHECKPOINT_DIR=/runs/1/2/checkpoints"));
}

TEST(PlanLaunch, TellsMpirunAboutRootAndForbiddenMemoryCopies) {
  LaunchHost host = Host();
  host.root = true;
  host.single_copy = false;
  const auto plan = PlanLaunch(Desired(2), kTrainer, host);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(Line(plan->commands[0]),
            "mpirun -np 2 --oversubscribe --bind-to none --mca plm isolated --allow-run-as-root --mca btl "
            "self,vader "
            "--mca btl_vader_single_copy_mechanism none /opt/scalelab-rank /opt/scalelab-trainer");
}

TEST(PlanLaunch, MakesIdleRanksYieldWhenThereAreMoreThanCores) {
  for (const auto& attempt : {Desired(4, 1), Desired(2, 2)}) {
    const auto plan = PlanLaunch(attempt, kTrainer, Host());
    ASSERT_TRUE(plan.ok());
    EXPECT_THAT(plan->commands[0].environment, Contains("OMPI_MCA_mpi_yield_when_idle=1"));
  }
}

TEST(PlanLaunch, StartsSeveralRanksWithoutRendezvousOneByOne) {
  const auto plan =
      PlanLaunch(Desired(2, 3), RankProgram{{"sh", "-c", "true"}, {{"X", "y"}}, Rendezvous::kNone}, Host());
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->commands.size(), 2u);
  EXPECT_EQ(Line(plan->commands[1]), "sh -c true");
  for (const char* entry : {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "OMP_NUM_THREADS=3", "X=y",
                            "SCALELAB_EVENTS=/runs/1/2/t0/events-1.jsonl"}) {
    EXPECT_THAT(plan->commands[1].environment, Contains(entry));
  }
  EXPECT_EQ(plan->commands[1].output, "/runs/1/2/t0/rank-1.out");
}

TEST(PlanLaunch, SetsDefaultsUnlessTheWorkersEnvironmentHasThem) {
  RankProgram program = kTrainer;
  program.defaults = {{"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"}};
  LaunchHost host = Host();
  const auto plan = PlanLaunch(Desired(2), program, host);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->commands[0].environment, Contains("GLIBC_TUNABLES=glibc.malloc.hugetlb=1"));
  host.environment.push_back("GLIBC_TUNABLES=glibc.malloc.hugetlb=0");
  const auto own = PlanLaunch(Desired(2), program, host);
  ASSERT_TRUE(own.ok());
  EXPECT_THAT(own->commands[0].environment, AllOf(Contains("GLIBC_TUNABLES=glibc.malloc.hugetlb=0"),
                                                  Not(Contains("GLIBC_TUNABLES=glibc.malloc.hugetlb=1"))));
}

TEST(PlanLaunch, GivesEachRankCoresOfItsOwn) {
  LaunchHost host = Host();
  host.own_cpus = {0, 2, 4, 6, 8};
  auto plan = PlanLaunch(Desired(2, 2), kTrainer, host);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->commands[0].environment, Contains("SCALELAB_RANK_CPUS=0,2/4,6"));
  EXPECT_THAT(plan->commands[0].cpus, ElementsAre()) << "mpirun itself waits anywhere";

  plan = PlanLaunch(Desired(2, 2), RankProgram{{"true"}, {}, Rendezvous::kNone}, host);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->commands[0].cpus, ElementsAre(0, 2));
  EXPECT_THAT(plan->commands[1].cpus, ElementsAre(4, 6));

  plan = PlanLaunch(Desired(3, 2), kTrainer, host);  // 5 cores for 3 ranks with 2 cores each
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->commands[0].environment, Not(Contains(HasSubstr("SCALELAB_RANK_CPUS"))));
}

TEST(PlanLaunch, SaysThatMpirunServesOneNode) {
  auto attempt = Desired(2);
  attempt.add_nodes("n1");
  const auto plan = PlanLaunch(attempt, kTrainer, Host());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(plan.status().ToString(), HasSubstr("2 nodes"));
}

TEST(PlanLaunch, StartsEverythingAsAStepOfTheJobUnderSlurm) {
  LaunchHost host = Host();
  host.launcher = Launcher::kSrun;
  auto attempt = Desired(3, 2);
  attempt.add_nodes("n1");
  attempt.set_ranks_per_node(2);
  attempt.mutable_spec()->set_gpus_per_rank(1);
  const auto plan = PlanLaunch(attempt, kTrainer, host);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->launcher, "srun");
  EXPECT_EQ(plan->hosts, "n0\nn0\nn1\n");
  ASSERT_EQ(plan->commands.size(), 1u);
  EXPECT_EQ(Line(plan->commands[0]),
            "srun --overlap --mpi=pmix --nodes=2 --ntasks=3 --distribution=arbitrary --cpus-per-task=2 "
            "--cpu-bind=cores --immediate=60 "
            "--kill-on-bad-exit=1 --input=none --export=ALL --chdir=/runs/1/2/t0 --gres=gpu:2 "
            "/opt/scalelab-rank /opt/scalelab-trainer");
  EXPECT_THAT(plan->commands[0].environment, Contains("SLURM_HOSTFILE=/runs/1/2/t0/hosts"));
  // The case is 2 ranks with 2 cores each on a machine with 2 cores.
  EXPECT_THAT(plan->commands[0].environment, Contains("OMPI_MCA_mpi_yield_when_idle=1"));
  EXPECT_THAT(plan->commands[0].environment, Contains("SLURM_PMIX_FENCE=ring"));

  const auto script = PlanLaunch(Desired(1), RankProgram{{"true"}, {}, Rendezvous::kNone}, host);
  ASSERT_TRUE(script.ok());
  EXPECT_THAT(script->commands[0].argv, Contains("--mpi=none"));
}

RankProgram Custom(const std::string& launcher,
                   std::vector<std::string> argv = {"/venv/bin/python3", "a.py"}) {
  RankProgram program;
  program.argv = std::move(argv);
  program.launcher = launcher;
  program.environment = {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "20001"}};
  program.rendezvous = launcher == "mpirun" || launcher == "srun" ? Rendezvous::kMpi : Rendezvous::kNone;
  return program;
}

TEST(PlanLaunch, GivesRanksOfCustomProgramsTheVariablesOfTorchrun) {
  const auto plan = PlanLaunch(Desired(2), Custom("plain"), Host());
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->commands.size(), 2u);
  for (const char* entry : {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0",
                            "GROUP_WORLD_SIZE=1", "ROLE_RANK=1", "ROLE_WORLD_SIZE=2", "ROLE_NAME=default",
                            "MASTER_ADDR=127.0.0.1", "MASTER_PORT=20001"}) {
    EXPECT_THAT(plan->commands[1].environment, Contains(entry));
  }
}

TEST(PlanLaunch, GivesCustomProgramsTheElasticVariablesThatOnlyTorchrunWouldSet) {
  auto attempt = Desired(2);
  attempt.set_run("studies/7/runs/71");
  attempt.set_earlier_attempts(1);
  attempt.set_max_retries(3);
  for (const char* launcher : {"plain", "mpirun", "srun"}) {
    LaunchHost host = Host();
    if (std::string(launcher) == "srun") host.launcher = Launcher::kSrun;
    const auto plan = PlanLaunch(attempt, Custom(launcher), host);
    ASSERT_TRUE(plan.ok()) << launcher;
    for (const Command& command : plan->commands) {
      EXPECT_THAT(command.environment,
                  AllOf(Contains("TORCHELASTIC_RUN_ID=studies-7-runs-71"),
                        Contains("TORCHELASTIC_RESTART_COUNT=1"), Contains("TORCHELASTIC_MAX_RESTARTS=3")))
          << launcher;
      EXPECT_THAT(command.environment, Not(Contains(HasSubstr("TORCHELASTIC_USE_AGENT_STORE")))) << launcher;
    }
  }
  // torchrun sets them itself, for its own restarts.
  const auto torchrun = PlanLaunch(attempt, Custom("torchrun"), Host());
  ASSERT_TRUE(torchrun.ok());
  EXPECT_THAT(torchrun->commands[0].environment, Not(Contains(HasSubstr("TORCHELASTIC"))));
  const auto trainer = PlanLaunch(attempt, kTrainer, Host());
  ASSERT_TRUE(trainer.ok());
  EXPECT_THAT(trainer->commands[0].environment, Not(Contains(HasSubstr("TORCHELASTIC"))));
}

TEST(PlanLaunch, GivesRanksTheParametersAndVariablesOfTheStudy) {
  auto attempt = Desired(1);
  (*attempt.mutable_spec()->mutable_params()->mutable_fields())["dropout"].set_number_value(0.5);
  (*attempt.mutable_spec()->mutable_env()->mutable_fields())["PATH"].set_string_value("/sbin");
  const auto plan = PlanLaunch(attempt, kTrainer, Host());
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->commands[0].environment, Contains("SCALELAB_PARAM_DROPOUT=0.5"));
  EXPECT_THAT(plan->commands[0].environment, Contains("PATH=/sbin"));
  EXPECT_THAT(plan->commands[0].environment, Not(Contains("PATH=/bin")));
}

// Otherwise all points of an axis env.OMP_NUM_THREADS would run with the same number of threads.
TEST(PlanLaunch, TheStudyMaySetThreadsAndYielding) {
  auto attempt = Desired(2, 2);
  auto& env = *attempt.mutable_spec()->mutable_env()->mutable_fields();
  env["OMP_NUM_THREADS"].set_string_value("7");
  env["OMPI_MCA_mpi_yield_when_idle"].set_string_value("0");
  const auto plan = PlanLaunch(attempt, Custom("mpirun", {"a"}), Host());
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->commands[0].environment, Contains("OMP_NUM_THREADS=7"));
  EXPECT_THAT(plan->commands[0].environment, Not(Contains("OMP_NUM_THREADS=2")));
  EXPECT_THAT(plan->commands[0].environment, Contains("OMPI_MCA_mpi_yield_when_idle=0"));
  EXPECT_THAT(plan->commands[0].environment, Not(Contains("OMPI_MCA_mpi_yield_when_idle=1")));
}

TEST(PlanLaunch, LeavesTheTransportOfOpenMpiToTheStudy) {
  auto attempt = Desired(2);
  (*attempt.mutable_spec()->mutable_env()->mutable_fields())["OMPI_MCA_btl"].set_string_value("self,tcp");
  const auto plan = PlanLaunch(attempt, Custom("mpirun", {"a"}), Host());
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(Line(plan->commands[0]), Not(HasSubstr("vader"))) << "an option would override the variable";
  EXPECT_THAT(plan->commands[0].environment, Contains("OMPI_MCA_btl=self,tcp"));
}

TEST(PlanLaunch, LeavesCopiesAndFencesOfMpiToTheStudy) {
  LaunchHost host = Host();
  host.single_copy = false;
  auto attempt = Desired(2);
  auto& env = *attempt.mutable_spec()->mutable_env()->mutable_fields();
  env["OMPI_MCA_btl_vader_single_copy_mechanism"].set_string_value("emulated");
  env["SLURM_PMIX_FENCE"].set_string_value("tree");
  const auto local = PlanLaunch(attempt, kTrainer, host);
  ASSERT_TRUE(local.ok());
  EXPECT_THAT(Line(local->commands[0]), Not(HasSubstr("single_copy")))
      << "an option would override the variable";
  host.launcher = Launcher::kSrun;
  const auto slurm = PlanLaunch(attempt, kTrainer, host);
  ASSERT_TRUE(slurm.ok());
  for (const auto& plan : {local, slurm}) {
    EXPECT_THAT(plan->commands[0].environment, Contains("OMPI_MCA_btl_vader_single_copy_mechanism=emulated"));
    EXPECT_THAT(plan->commands[0].environment,
                Not(Contains("OMPI_MCA_btl_vader_single_copy_mechanism=none")));
  }
  EXPECT_THAT(slurm->commands[0].environment, Contains("SLURM_PMIX_FENCE=tree"));
  EXPECT_THAT(slurm->commands[0].environment, Not(Contains("SLURM_PMIX_FENCE=ring")));
}

TEST(PlanLaunch, StartsRanksWithTheTorchrunOfTheirPython) {
  const auto plan = PlanLaunch(Desired(2), Custom("torchrun"), Host());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->launcher, "torchrun");
  ASSERT_EQ(plan->commands.size(), 1u);
  EXPECT_EQ(
      Line(plan->commands[0]),
      "/venv/bin/python3 -m torch.distributed.run --nnodes=1 --nproc_per_node=2 --max_restarts=0 "
      "--master_addr=127.0.0.1 --master_port=20001 --no_python /opt/scalelab-rank /venv/bin/python3 a.py");
  EXPECT_EQ(plan->commands[0].error, "/runs/1/2/t0/launcher.err");
  const auto other = PlanLaunch(Desired(2), Custom("torchrun", {"./train"}), Host());
  EXPECT_THAT(Line(other->commands[0]), testing::StartsWith("torchrun --nnodes=1 "));
}

TEST(PlanLaunch, StartsOneTorchrunOnEachNodeUnderSlurm) {
  LaunchHost host = Host();
  host.launcher = Launcher::kSrun;
  auto attempt = Desired(3);
  attempt.add_nodes("n1");
  attempt.set_ranks_per_node(2);
  const auto plan = PlanLaunch(attempt, Custom("torchrun"), host);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->hosts, "n0\nn1\n");
  const std::string line = Line(plan->commands[0]);
  EXPECT_THAT(line, HasSubstr("--mpi=none --nodes=2 --ntasks=2 --distribution=arbitrary --cpus-per-task=2"));
  EXPECT_THAT(
      line,
      HasSubstr("/opt/scalelab-rank --node /venv/bin/python3 -m torch.distributed.run --nnodes=2 --max"));
  EXPECT_THAT(plan->commands[0].environment, Contains("SCALELAB_RANKS_PER_NODE=2"));
}

TEST(PlanLaunch, StartsMpiProgramsThroughMpirunOrTheSitesMpi) {
  const auto local = PlanLaunch(Desired(1), Custom("mpirun", {"NPopenmpi"}), Host());
  ASSERT_TRUE(local.ok());
  EXPECT_THAT(Line(local->commands[0]), testing::EndsWith("/opt/scalelab-rank NPopenmpi"));
  EXPECT_EQ(local->launcher, "mpirun") << "also one rank, because the study names this launcher";
  EXPECT_EQ(PlanLaunch(Desired(1), Custom("srun"), Host()).status().message(),
            "Launcher srun needs Slurm; use launcher mpirun for an MPI program, or plain.");
  LaunchHost slurm = Host();
  slurm.launcher = Launcher::kSrun;
  EXPECT_THAT(Line(PlanLaunch(Desired(2), Custom("mpirun"), slurm)->commands[0]), HasSubstr("--mpi=pmix"));
  EXPECT_THAT(Line(PlanLaunch(Desired(2), Custom("srun"), slurm)->commands[0]), Not(HasSubstr("--mpi")));
  EXPECT_THAT(Line(PlanLaunch(Desired(2), Custom("plain"), slurm)->commands[0]), HasSubstr("--mpi=none"));
}

TEST(RanksOn, FillsNodesOneAfterAnother) {
  auto attempt = Desired(5);
  attempt.add_nodes("n1");
  attempt.add_nodes("n2");
  attempt.set_ranks_per_node(2);
  EXPECT_EQ(RanksOn(attempt, 1).first, 2);
  EXPECT_EQ(RanksOn(attempt, 1).count, 2);
  EXPECT_EQ(RanksOn(attempt, 2).first, 4);
  EXPECT_EQ(RanksOn(attempt, 2).count, 1);
}

TEST(InheritedEnvironment, LeavesOutTracesOfASurroundingStepAndOurOwnVariables) {
  EXPECT_THAT(InheritedEnvironment({"PATH=/bin", "PMIX_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "SLURM_STEP_ID=1",
                                    "SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_EXPORT_ENV=PATH", "RANK=3",
                                    "RANKING=1", "SCALELAB_ALLOCATION_SECRET=s",
                                    "TORCHELASTIC_USE_AGENT_STORE=True"}),
              ElementsAre("PATH=/bin", "SLURM_JOB_ID=7", "RANKING=1"));
}

TEST(InheritedEnvironment, KeepsTheSettingsOfMpiUnlessAnMpiStepHasSetThem) {
  EXPECT_THAT(
      InheritedEnvironment({"OMPI_MCA_btl_tcp_if_include=ib0", "PMIX_MCA_gds=hash", "OMPI_FILE_LOCATION=/x"}),
      ElementsAre("OMPI_MCA_btl_tcp_if_include=ib0", "PMIX_MCA_gds=hash"));
  EXPECT_THAT(InheritedEnvironment({"A=b", "OMPI_MCA_ess=pmi", "OMPI_COMM_WORLD_RANK=0"}),
              ElementsAre("A=b"));
  EXPECT_THAT(InheritedEnvironment({"A=b", "PMIX_MCA_gds=hash", "PMIX_RANK=0"}), ElementsAre("A=b"));
}

TEST(PlanLaunch, StartsOneProcessForAllReplicasWithTheirCores) {
  const RankProgram program{{"python", "mirrored.py"}, {}, Rendezvous::kNone, true};
  LaunchHost host = Host();
  host.own_cpus = {0, 2, 4, 6, 8};
  auto plan = PlanLaunch(Desired(2, 2), program, host);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->commands.size(), 1u);
  EXPECT_THAT(plan->commands[0].cpus, ElementsAre(0, 2, 4, 6));
  for (const char* entry : {"RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=2", "SCALELAB_REPLICAS=2",
                            "OMP_NUM_THREADS=4", "SCALELAB_EVENTS=/runs/1/2/t0/events-0.jsonl"}) {
    EXPECT_THAT(plan->commands[0].environment, Contains(entry));
  }

  host.launcher = Launcher::kSrun;
  auto attempt = Desired(3, 2);
  attempt.mutable_spec()->set_gpus_per_rank(1);
  plan = PlanLaunch(attempt, program, host);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->hosts, "n0\n");
  EXPECT_THAT(Line(plan->commands[0]), HasSubstr("--mpi=none --nodes=1 --ntasks=1 --distribution=arbitrary "
                                                 "--cpus-per-task=6 --cpu-bind=cores"));
  EXPECT_THAT(plan->commands[0].argv, Contains("--gres=gpu:3"));

  attempt.add_nodes("n1");
  attempt.set_ranks_per_node(2);
  EXPECT_THAT(PlanLaunch(attempt, program, host).status().ToString(), HasSubstr("ranks_per_node to 3"));
}

Frameworks AllFrameworks(const std::string& adapters = "/nowhere") {
  Frameworks frameworks;
  frameworks.push_back(NewNativeFramework("/bin/sh"));
  frameworks.push_back(NewPythonFramework(adapters, "/opt/bin/scalelab-trainer"));
  frameworks.push_back(NewCustomFramework());
  return frameworks;
}

TEST(FrameworkOf, ServesEveryEngineAndNamesWhatItDoesNotKnow) {
  const Frameworks frameworks = AllFrameworks();
  DesiredAttempt attempt = Desired(2);
  v1::RunSpec& spec = *attempt.mutable_spec();
  spec.set_engine("native/ddp");
  spec.set_backend("mpi");
  auto native = FrameworkOf(frameworks, "native/ddp");
  ASSERT_TRUE(native.ok());
  EXPECT_EQ((*native)->ProgramOf(attempt)->rendezvous, Rendezvous::kMpi);
  spec.set_ranks(1);
  EXPECT_EQ((*native)->ProgramOf(attempt)->rendezvous, Rendezvous::kMpi);
  spec.set_backend("auto");
  EXPECT_EQ((*native)->ProgramOf(attempt)->rendezvous, Rendezvous::kNone) << "alone, it needs nobody";
  spec.set_ranks(2);
  EXPECT_EQ((*native)->ProgramOf(attempt)->rendezvous, Rendezvous::kMpi);
  spec.set_gpus_per_rank(1);
  EXPECT_EQ((*native)->ProgramOf(attempt)->rendezvous, Rendezvous::kNone) << "on GPUs, auto is nccl";
  spec.set_device("cpu");
  EXPECT_EQ((*native)->ProgramOf(attempt)->rendezvous, Rendezvous::kMpi);
  spec.set_gpus_per_rank(0);
  spec.set_backend("gloo");
  EXPECT_EQ((*native)->ProgramOf(attempt)->rendezvous, Rendezvous::kNone);
  auto custom = FrameworkOf(frameworks, "custom");
  ASSERT_TRUE(custom.ok());
  EXPECT_EQ((*custom)->ProgramOf(attempt).status().code(), absl::StatusCode::kFailedPrecondition);
  spec.add_command("true");
  EXPECT_THAT((*custom)->ProgramOf(attempt)->argv, ElementsAre("true"));
  for (const Engine& engine : Engines())
    EXPECT_TRUE(FrameworkOf(frameworks, engine.name).ok()) << engine.name;
  EXPECT_THAT(FrameworkOf(frameworks, "mxnet/dist").status().ToString(), HasSubstr("mxnet/dist"));
}

TEST(FrameworkOf, SaysWhichTrainerIsMissing) {
  DesiredAttempt attempt = Desired(1);
  attempt.mutable_spec()->set_engine("native/ddp");
  const auto program = NewNativeFramework("/nowhere/scalelab-trainer")->ProgramOf(attempt);
  EXPECT_THAT(program.status().ToString(), HasSubstr("/nowhere/scalelab-trainer"));
}

}  // namespace
}  // namespace scalelab::worker
