#include "server/doctor/program_checks.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/server/doctor/findings.h"

namespace scalelab::server::doctor {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(ProgramChecks, MungeMakesACredentialAndAcceptsIt) {
  FakePrograms programs;
  EXPECT_THAT(CheckMunge(programs.run(), ""), IsError("munge: not found"));
  programs.Fail("munge", "munge: Error: Failed to access \"/run/munge/munge.socket.2\"");
  EXPECT_THAT(CheckMunge(programs.run(), ""), IsError("munge.socket.2"));
  programs.Answer("munge", "MUNGE:AwQ:");
  programs.Fail("unmunge", "unmunge: Error: Expired credential");
  EXPECT_THAT(CheckMunge(programs.run(), ""), IsError("Expired credential"));
  programs.Answer("unmunge", "STATUS: Success (0)");
  EXPECT_THAT(CheckMunge(programs.run(), ""), IsOk("accepts"));
  EXPECT_EQ(programs.inputs.back(), "MUNGE:AwQ:");
  EXPECT_THAT(CheckMunge(programs.run(), "/run/m.socket"), IsOk("accepts"));
  EXPECT_EQ(programs.calls.back(), "unmunge --socket=/run/m.socket");
}

std::string Unit(const std::string& more) {
  return "LoadState=loaded\nNRestarts=0\nNeedDaemonReload=no\n" + more;
}

TEST(ProgramChecks, TheUnitsStateIsReported) {
  FakePrograms programs;
  EXPECT_THAT(CheckUnit(programs.run()), IsEmpty()) << "a machine without systemd";
  programs.Fail("systemctl", "System has not been booted with systemd as init system");
  EXPECT_THAT(CheckUnit(programs.run()), IsEmpty());
  programs.Answer("systemctl", "LoadState=not-found\nActiveState=inactive\n");
  EXPECT_THAT(CheckUnit(programs.run()), IsEmpty()) << "not installed as a unit";
  programs.Answer("systemctl", Unit("ActiveState=active\nUnitFileState=enabled\n"));
  EXPECT_THAT(CheckUnit(programs.run()), ElementsAre(IsOk("active")));
  programs.Answer("systemctl", Unit("ActiveState=failed\nResult=exit-code\n"));
  EXPECT_THAT(CheckUnit(programs.run()), ElementsAre(IsError("failed (exit-code)")));
  programs.Answer("systemctl", Unit("ActiveState=active\nUnitFileState=disabled\n"));
  EXPECT_THAT(CheckUnit(programs.run()), ElementsAre(IsWarning("does not start when the machine starts")));
  programs.Answer("systemctl", "LoadState=masked\n");
  EXPECT_THAT(CheckUnit(programs.run()), ElementsAre(IsError("masked")));
}

TEST(ProgramChecks, AUnitWithOneOfSeveralSettingsIgnoresSetuidBits) {
  FakePrograms programs;
  EXPECT_FALSE(UnitIgnoresSetuid(programs.run())) << "a machine without systemd";
  programs.Answer("systemctl", "NoNewPrivileges=no\nRestrictSUIDSGID=no\nLockPersonality=no\n");
  EXPECT_FALSE(UnitIgnoresSetuid(programs.run()));
  programs.Answer("systemctl", "NoNewPrivileges=yes\nRestrictSUIDSGID=no\nLockPersonality=no\n");
  EXPECT_TRUE(UnitIgnoresSetuid(programs.run()));
  programs.Answer("systemctl", "NoNewPrivileges=no\nRestrictSUIDSGID=no\nLockPersonality=yes\n");
  EXPECT_TRUE(UnitIgnoresSetuid(programs.run())) << "systemd.exec(5): LockPersonality= implies it";
  programs.Fail("systemctl", "System has not been booted with systemd as init system");
  EXPECT_FALSE(UnitIgnoresSetuid(programs.run()));
}

TEST(ProgramChecks, TheWorkerNeedsItsProgramsLibrariesAndVersion) {
  FakePrograms programs;
  programs.Fail("ldd /b/scalelab-trainer", "ldd: /b/scalelab-trainer: No such file or directory");
  programs.Answer("ldd /b/scalelab-worker", "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n");
  programs.Answer("ldd /b/scalelab-rank", "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n");
  EXPECT_THAT(CheckWorkerPrograms(programs.run(), "/b/scalelab-worker", "1.2"),
              ElementsAre(IsError("/b/scalelab-trainer: ldd")));
  programs.Answer("ldd /b/scalelab-trainer",
                  "\tlibtorch_cpu.so.1.13 => not found\n\tlibmpi.so.40 => /lib/libmpi.so.40 (0x2)\n");
  EXPECT_THAT(CheckWorkerPrograms(programs.run(), "/b/scalelab-worker", "1.2"),
              ElementsAre(IsError("/b/scalelab-trainer lacks libtorch_cpu.so.1.13")));
  programs.Answer("ldd /b/scalelab-trainer", "\tlibmpi.so.40 => /lib/libmpi.so.40 (0x2)\n");
  programs.Answer("/b/scalelab-worker --version", "scalelab-worker 1.1\n");
  EXPECT_THAT(CheckWorkerPrograms(programs.run(), "/b/scalelab-worker", "1.2"),
              ElementsAre(IsWarning("is scalelab-worker 1.1, and scalelabd is 1.2")));
  programs.Answer("/b/scalelab-worker --version", "scalelab-worker 1.2\n");
  EXPECT_THAT(CheckWorkerPrograms(programs.run(), "/b/scalelab-worker", "1.2"),
              ElementsAre(IsOk("start here")));
}

TEST(ProgramChecks, ScriptsStartTheWorkerElsewhere) {
  FakePrograms programs;
  programs.Fail("ldd /b/scalelab-worker", "\tnot a dynamic executable");
  programs.Fail("ldd /b/scalelab-rank", "ldd: /b/scalelab-rank: No such file or directory");
  programs.Fail("ldd /b/scalelab-trainer", "ldd: /b/scalelab-trainer: No such file or directory");
  programs.Answer("/b/scalelab-worker --version", "scalelab-worker 1.2\n");
  programs.Fail("test -x /b/scalelab-worker", "");
  EXPECT_TRUE(HasError(CheckWorkerPrograms(programs.run(), "/b/scalelab-worker", "1.2")))
      << "the script is not executable";
  programs.Answer("test -x /b/scalelab-worker", "");
  EXPECT_THAT(CheckWorkerPrograms(programs.run(), "/b/scalelab-worker", "1.2"),
              ElementsAre(IsWarning("/b/scalelab-trainer: ldd")));
  programs.Fail("ldd /b/scalelab-trainer", "\tnot a dynamic executable");
  programs.Answer("test -x /b/scalelab-trainer", "");
  EXPECT_THAT(CheckWorkerPrograms(programs.run(), "/b/scalelab-worker", "1.2"),
              ElementsAre(IsOk("/b/scalelab-worker is a script")));
  programs.Fail("/b/scalelab-worker --version", "apptainer: not found");
  EXPECT_THAT(CheckWorkerPrograms(programs.run(), "/b/scalelab-worker", "1.2"),
              ElementsAre(IsError("apptainer: not found")));
}

class SlurmChecks : public testing::Test {
 protected:
  SlurmChecks() {
    for (const char* program : {"sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun"})
      programs_.Answer(absl::StrCat(program, " --version"), "slurm-wlm 22.05.8\n");
    Config("task/affinity,task/cgroup");
    programs_.Answer("sinfo --all", Nodes({"idle", "idle"}, "up"));
    programs_.Answer("sbatch --test-only", "");
    programs_.Answer("munge --no-input --socket=/m.socket", "MUNGE:AwQ:");
    programs_.Answer("unmunge --socket=/m.socket", "STATUS: Success (0)");
  }

  void Config(const std::string& tasks) {
    programs_.Answer(
        "scontrol show config",
        "Configuration data as of 2026\nClusterName = lab\nSLURM_VERSION = 22.05.8\nAuthType = auth/munge\n"
        "AuthInfo = socket=/m.socket\nTaskPlugin = " +
            tasks + "\n");
  }

  // Returns rows in the format of sinfo with kSinfoColumns.
  static std::string Nodes(const std::vector<std::string>& states, const std::string& partition) {
    std::string rows;
    for (size_t i = 0; i < states.size(); ++i)
      absl::StrAppend(&rows, "n", i + 1, "|main*|", partition, "|infinite|", states[i],
                      "|0/4/0/4|8000|(null)|gpu:0|none\n");
    return rows;
  }

  Findings Check() { return CheckSlurm(programs_.run(), {{"account", "lab"}, {"exclusive", ""}}, false); }

  FakePrograms programs_;
};

TEST_F(SlurmChecks, EachPartOfAGoodClusterIsOneLine) {
  EXPECT_THAT(Check(), ElementsAre(IsOk("version 22.05.8"), IsOk("accepts credentials"),
                                   IsOk("2 in partitions main"), IsOk("would accept")));
  EXPECT_THAT(programs_.calls.back(), HasSubstr("--account=lab --exclusive"));
}

TEST_F(SlurmChecks, MissingProgramsAreNamed) {
  programs_.Fail("sinfo --version", "exec format error");
  EXPECT_THAT(Check(), ElementsAre(IsError("sinfo")));
}

TEST_F(SlurmChecks, ASilentControllerEndsTheChecks) {
  programs_.Fail("scontrol show config",
                 "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)");
  EXPECT_THAT(Check(), ElementsAre(IsError("Unable to contact slurm controller")));
}

TEST_F(SlurmChecks, NodesThatAcceptNoJobsAreNamed) {
  programs_.Answer("sinfo --all", Nodes({"idle", "drained"}, "up"));
  EXPECT_THAT(Check(), Contains(IsWarning("1 of 2 accept no jobs: n2 (")));
  programs_.Answer("sinfo --all", Nodes({"idle", "idle*"}, "up"));
  EXPECT_THAT(Check(), Contains(IsWarning("1 of 2 accept no jobs: n2 (IDLE, does not respond)")));
  programs_.Answer("sinfo --all", Nodes({"down*", "drained"}, "up"));
  EXPECT_THAT(Check(), Contains(IsError("none accepts jobs")));
}

TEST_F(SlurmChecks, APartitionThatIsNotUpIsFound) {
  programs_.Answer("sinfo --all", Nodes({"idle"}, "down"));
  EXPECT_THAT(Check(), Contains(IsError("no partition is up")));
}

TEST_F(SlurmChecks, AnAccountThatMayNotSubmitIsAnErrorWithSlurmsReason) {
  programs_.Fail("sbatch --test-only",
                 "allocation failure: Invalid account or account/partition combination specified");
  EXPECT_THAT(Check(), Contains(IsError("Invalid account or account/partition combination")));
}

TEST_F(SlurmChecks, AnAccountThatSubmitsNoJobsNeedNotBeAllowedTo) {
  programs_.Fail("sbatch --test-only", "allocation failure: Invalid account");
  EXPECT_THAT(CheckSlurm(programs_.run(), {}, /*users_submit=*/true),
              ElementsAre(IsOk("version 22.05.8"), IsOk("accepts credentials"), IsOk("2 in partitions main"),
                          IsOk("the agents of the users submit the jobs")));
  EXPECT_THAT(programs_.calls, Not(Contains(HasSubstr("--test-only"))));
}

TEST_F(SlurmChecks, RanksThatAreNotBoundAreAWarning) {
  Config("task/none");
  EXPECT_THAT(Check(), Contains(IsWarning("not bound")));
}

}  // namespace
}  // namespace scalelab::server::doctor
