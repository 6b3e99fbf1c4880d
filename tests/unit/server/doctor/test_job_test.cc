#include "server/doctor/test_job.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/server/doctor/findings.h"

namespace scalelab::server::doctor {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class TestJobTest : public testing::Test {
 protected:
  TestJobTest() {
    std::string directory = testing::TempDir() + "job-XXXXXX";
    root_ = mkdtemp(directory.data());
    std::filesystem::create_directories(root_ + "/runs");
    for (const char* program : {"scalelab-worker", "scalelab-rank", "scalelab-trainer"})
      Script(std::string("bin/") + program, "echo scalelab-worker 1.2");
    std::filesystem::create_directories(root_ + "/share/scalelab/adapters");
    std::ofstream(root_ + "/share/scalelab/adapters/probe.py") << "x";
    job_.worker_program = root_ + "/bin/scalelab-worker";
    job_.version = "1.2";
    job_.runs_dir = root_ + "/runs";
    job_.limit = absl::Seconds(3);
    job_.sleep = [this](absl::Duration by) { now_ += by; };
    job_.now = [this] { return now_; };
  }
  ~TestJobTest() override { std::filesystem::remove_all(root_); }

  void Script(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + "/" + name).parent_path());
    std::ofstream(root_ + "/" + name) << "#!/bin/sh\n" << text << "\n";
    chmod((root_ + "/" + name).c_str(), 0755);
  }

  // Replaces the script of the worker by a program, which prints another version.
  void BinaryWorker() {
    std::filesystem::copy_file("/bin/true", job_.worker_program,
                               std::filesystem::copy_options::overwrite_existing);
  }

  // Programs of a Slurm whose jobs run at once, on this machine.
  doctor::Run Slurm() {
    return [this, fake = programs_.run(), here = RunHere()](const std::vector<std::string>& argv,
                                                            const std::string& input) {
      absl::StatusOr<CommandResult> result = fake(argv, input);
      if (argv[0] != "sbatch" || !result.ok() || !result->ok() || !job_runs_) return result;
      for (const std::string& argument : argv) {
        const std::string prefix = "--output=";
        if (absl::StartsWith(argument, prefix))
          std::ofstream(argument.substr(prefix.size())) << here({"bash", "-s"}, input)->out;
      }
      return result;
    };
  }

  std::string root_;
  TestJob job_;
  FakePrograms programs_;
  bool job_runs_ = true;
  absl::Duration now_;
};

TEST_F(TestJobTest, TheLocalSchedulerRunsTheScriptHere) {
  EXPECT_THAT(RunTestJob(RunHere(), job_), ElementsAre(IsOk("has the programs")));
  EXPECT_TRUE(std::filesystem::is_empty(root_ + "/runs"));
}

TEST_F(TestJobTest, DirectoriesThatTheJobNeedsAreRemovedAgain) {
  job_.runs_dir = root_ + "/runs/a/b";
  EXPECT_THAT(RunTestJob(RunHere(), job_), ElementsAre(IsOk("has the programs")));
  EXPECT_TRUE(std::filesystem::is_empty(root_ + "/runs"));
}

TEST_F(TestJobTest, ProgramsAreFoundWherePackagesInstallThem) {
  BinaryWorker();
  for (const char* program : {"scalelab-rank", "scalelab-trainer"}) {
    std::filesystem::remove(root_ + "/bin/" + program);
    Script(std::string("lib/scalelab/") + program, "true");
  }
  EXPECT_THAT(RunTestJob(RunHere(), job_), ElementsAre(IsWarning("and scalelabd is 1.2")));
}

TEST_F(TestJobTest, AScriptStartsTheWorkerWhereItsOtherFilesAre) {
  for (const char* file : {"bin/scalelab-rank", "bin/scalelab-trainer", "share"})
    std::filesystem::remove_all(root_ + "/" + file);
  EXPECT_THAT(RunTestJob(RunHere(), job_), ElementsAre(IsOk("has the programs")));
  chmod(job_.worker_program.c_str(), 0644);
  EXPECT_THAT(RunTestJob(RunHere(), job_), ElementsAre(IsError("does not have " + job_.worker_program)));
}

TEST_F(TestJobTest, AMissingProgramIsNamed) {
  BinaryWorker();
  std::filesystem::remove(root_ + "/bin/scalelab-trainer");
  EXPECT_THAT(RunTestJob(RunHere(), job_),
              ElementsAre(IsError("does not have " + root_ + "/bin/scalelab-trainer")));
}

TEST_F(TestJobTest, TheJobIsSubmittedWithTheSitesOptions) {
  job_.slurm = true;
  job_.sbatch_options = {{"account", "lab"}};
  programs_.Answer("sbatch", "17;cluster\n");
  programs_.Answer("squeue", "COMPLETED (None) n1\n");
  EXPECT_THAT(RunTestJob(Slurm(), job_), ElementsAre(IsOk("has the programs")));
  EXPECT_THAT(programs_.calls, Contains(AllOf(HasSubstr("sbatch --parsable"), HasSubstr("--account=lab"))));
  EXPECT_THAT(programs_.calls, Contains(HasSubstr("--jobs=17")));
}

TEST_F(TestJobTest, ARefusedJobIsAnErrorWithSlurmsReason) {
  job_.slurm = true;
  programs_.Fail("sbatch", "sbatch: error: Batch job submission failed: Invalid account");
  EXPECT_THAT(RunTestJob(Slurm(), job_), ElementsAre(IsError("Invalid account")));
}

TEST_F(TestJobTest, AJobThatWaitsTooLongIsCancelled) {
  job_.slurm = true;
  programs_.Answer("sbatch", "17\n");
  programs_.Answer("squeue", "PENDING (Resources) \n");
  programs_.Answer("scancel", "");
  EXPECT_THAT(RunTestJob(Slurm(), job_), ElementsAre(IsWarning("PENDING (Resources)")));
  EXPECT_EQ(programs_.calls.back(), "scancel 17");
}

TEST_F(TestJobTest, QueriesThatTimeOutCountTowardsTheLimit) {
  job_.slurm = true;
  job_runs_ = false;
  job_.limit = absl::Minutes(2);
  programs_.Answer("sbatch", "17\n");
  programs_.Answer("scancel", "");
  int queries = 0;
  const auto slow = [&, slurm = Slurm()](const std::vector<std::string>& argv, const std::string& input) {
    if (argv[0] == "squeue") {
      ++queries;
      now_ += absl::Seconds(15);
    }
    return slurm(argv, input);
  };
  EXPECT_THAT(RunTestJob(slow, job_), ElementsAre(IsWarning("did not end in 2m; its state was unknown")));
  EXPECT_EQ(queries, 8);
  EXPECT_EQ(programs_.calls.back(), "scancel 17");
}

TEST_F(TestJobTest, AJobThatSlurmHasForgottenHasEnded) {
  job_.slurm = true;
  programs_.Answer("sbatch", "17\n");
  programs_.Fail("squeue", "slurm_load_jobs error: Invalid job id specified");
  EXPECT_THAT(RunTestJob(Slurm(), job_), ElementsAre(IsOk("")));
}

TEST_F(TestJobTest, AJobWithoutOutputMeansThatTheNodeHasAnotherDirectory) {
  job_.slurm = true;
  job_runs_ = false;
  programs_.Answer("sbatch", "17\n");
  programs_.Answer("squeue", "COMPLETED (None) n1\n");
  EXPECT_THAT(RunTestJob(Slurm(), job_),
              ElementsAre(IsError("its output is not in " + root_ + "/runs/doctor-")));
}

// Returns a free port of the loopback interface.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size), 0);
  close(fd);
  return ntohs(name.sin_port);
}

TEST_F(TestJobTest, WithoutAServerTheDoctorListensOnItsPort) {
  job_.worker_server = absl::StrCat("127.0.0.1:", FreePort());
  EXPECT_THAT(RunTestJob(RunHere(), job_), ElementsAre(IsOk("reaches the service")));
}

TEST_F(TestJobTest, AnAddressThatNobodyServesIsAnError) {
  job_.worker_server = "192.0.2.1:7600";  // reserved for documentation
  EXPECT_THAT(RunTestJob(RunHere(), job_), ElementsAre(IsError("cannot connect to 192.0.2.1:7600")));
}

}  // namespace
}  // namespace scalelab::server::doctor
