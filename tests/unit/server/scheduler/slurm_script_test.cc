#include "server/scheduler/slurm_script.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/command/command.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;
using testing::Not;

SlurmScriptOptions Options() {
  return {"/shared/runs",
          "/opt/scalelab/bin/scalelab-worker",
          "login1:50051",
          {{"account", "lab"}, {"contiguous", ""}}};
}

JobRequest Request() {
  JobRequest request;
  request.token = "0fa81c97-b28a-48c9-afce-94e87bf04c0e";
  request.secret = "a-very-secret-word";
  request.study = "resnet20-strong";
  request.nodes = 4;
  request.ranks_per_node = 4;
  request.cpus_per_rank = 8;
  request.gpus_per_rank = 1;
  request.time_limit = absl::Minutes(90) + absl::Seconds(1);
  request.partition = "gpu";
  request.exclusive = true;
  request.memory_mib = 64000;
  request.options = {{"account", "lab2"}, {"constraint", "a100&nvlink"}};
  return request;
}

// Runs bash with `input` as standard input.
CommandResult Bash(const std::vector<std::string>& words, const std::string& input) {
  std::vector<std::string> argv = {"bash"};
  argv.insert(argv.end(), words.begin(), words.end());
  std::vector<std::string> environment = {absl::StrCat("PATH=", getenv("PATH"))};
  const auto result = RunCommand(argv, input, environment, absl::Seconds(20));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(CommandResult());
}

TEST(SlurmScript, MatchesTheGoldenFile) {
  const std::string file = SCALELAB_GOLDEN_DIR "/slurm/job.sh", script = SlurmScript(Options(), Request());
  if (getenv("SCALELAB_UPDATE_GOLDEN") != nullptr) std::ofstream(file) << script;
  std::ifstream stream(file);
  EXPECT_EQ(script, std::string(std::istreambuf_iterator<char>(stream), {}))
      << "if the new script is correct, run SCALELAB_UPDATE_GOLDEN=1 slurm_script_test";
  EXPECT_THAT(script, Not(HasSubstr("a-very-secret-word")));
}

TEST(SlurmScript, IsValidBash) {
  EXPECT_EQ(Bash({"-n"}, SlurmScript(Options(), Request())).err, "");
  JobRequest odd = Request();
  odd.study = "it's \"odd\"\n$(false) `false`";
  odd.options = {{"comment", "a \"b\" \\ # $(touch /tmp/x) 'c'\nrm -rf /"}};
  SlurmScriptOptions options = Options();
  options.worker_program = "/opt/it's \"here\"/$HOME/worker";
  const std::string script = SlurmScript(options, odd);
  const CommandResult result = Bash({"-n"}, script);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(script, HasSubstr("#SBATCH --comment=\"a \\\"b\\\" \\\\ # $(touch /tmp/x) 'c' rm -rf /\"\n"));
  EXPECT_THAT(script, Not(HasSubstr("\nrm")));
}

TEST(SlurmScript, RequestsTheResources) {
  JobRequest request = Request();
  request.gpus_per_rank = 0;
  request.exclusive = false;
  request.memory_mib = 0;
  request.partition = "";
  const std::string script = SlurmScript(Options(), request);
  for (const char* left_out : {"--gres", "--exclusive", "--mem=6", "--partition"})
    EXPECT_THAT(script, Not(HasSubstr(absl::StrCat("#SBATCH ", left_out))));
  request.time_limit = absl::Seconds(1);
  EXPECT_THAT(SlurmScript(Options(), request), HasSubstr("--time=0-00:01:00\n"));
  request.time_limit = absl::Hours(49);
  EXPECT_THAT(SlurmScript(Options(), request), HasSubstr("--time=2-01:00:00\n"));
  SlurmScriptOptions options = Options();
  options.runs_dir = "/shared/100%j runs";
  EXPECT_THAT(SlurmScript(options, request), HasSubstr("--output=\"/shared/100%%j runs/allocations/"));
}

TEST(SlurmScript, GivesWorkersTheCertificateOnOneLine) {
  SlurmScriptOptions options = Options();
  EXPECT_THAT(SlurmScript(options, Request()), Not(HasSubstr("--certificate")));
  options.server_certificate = "-----BEGIN\nCERTIFICATE";
  EXPECT_THAT(SlurmScript(options, Request()),
              HasSubstr(" --certificate 'LS0tLS1CRUdJTgpDRVJUSUZJQ0FURQ==')\n"));
}

// Runs the script with a fake srun that starts one worker, as node 2.
class SlurmScriptRuns : public testing::Test {
 protected:
  SlurmScriptRuns() {
    std::string directory = testing::TempDir() + "slurm-script-XXXXXX";
    directory_ = mkdtemp(directory.data());
    Program("srun",
            "while [[ $1 == --* ]]; do shift; done\n"
            "SLURMD_NODENAME=node3 SLURM_NODEID=2 exec \"$@\"\n");
  }
  ~SlurmScriptRuns() override {
    std::filesystem::remove_all(directory_);
    std::filesystem::remove(Lock());
  }
  void Program(const std::string& name, const std::string& text) {
    const std::string file = directory_ + "/" + name;
    std::ofstream(file) << "#!/bin/bash\n" << text;
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  std::string Lock() const { return absl::StrCat("/tmp/scalelab-", geteuid(), "/", token_, "-2.lock"); }
  CommandResult Run(const std::string& before = "") {
    SlurmScriptOptions options = Options();
    options.worker_program = directory_ + "/worker";
    JobRequest request = Request();
    request.token = token_;
    const std::string script = directory_ + "/job.sh";
    std::ofstream(script) << SlurmScript(options, request);
    return Bash({}, absl::StrCat("PATH=", directory_, ":$PATH\nexport SLURM_JOB_NUM_NODES=4\n",
                                 "export SCALELAB_ALLOCATION_SECRET=", secret_, "\n", before, "\nexec bash ",
                                 script));
  }

  const std::string token_ = absl::StrCat("script-test-", getpid());
  const std::string secret_ = absl::StrCat("needle-", getpid());
  std::string directory_;
};

TEST(SlurmScript, ExcludedNodesJoinThoseOfTheSiteOrTheStudy) {
  JobRequest request = Request();
  EXPECT_THAT(SlurmScript(Options(), request), Not(HasSubstr("--exclude")));
  request.excluded_nodes = {"n3", "n7"};
  EXPECT_THAT(SlurmScript(Options(), request), HasSubstr("#SBATCH --exclude=n3,n7\n"));
  SlurmScriptOptions site = Options();
  site.site_options.emplace_back("exclude", "n1");
  EXPECT_THAT(SlurmScript(site, request), HasSubstr("#SBATCH --exclude=n1,n3,n7\n"));
  request.options.emplace_back("exclude", "gpu[1-4]");
  const std::string script = SlurmScript(site, request);
  EXPECT_THAT(script, HasSubstr("#SBATCH --exclude=\"gpu[1-4],n3,n7\"\n"));
  EXPECT_EQ(script.find("--exclude"), script.rfind("--exclude")) << "sbatch uses only the last one";
}

TEST(SlurmScript, AStudyThatNamesItsNodesGetsThem) {
  JobRequest request = Request();
  request.excluded_nodes = {"n3"};
  request.options.emplace_back("nodelist", "n3");
  EXPECT_THAT(SlurmScript(Options(), request), Not(HasSubstr("--exclude")));
}

TEST_F(SlurmScriptRuns, StartsTheWorkerAndReturnsItsExitStatus) {
  Program("worker", "echo \"$@\"; exit 3\n");
  const CommandResult result = Run();
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_EQ(result.out, absl::StrCat("--server login1:50051 --launcher srun --allocation ", token_,
                                     " --node node3 --node-index 2 --lock ", Lock(), "\n"));
}

TEST_F(SlurmScriptRuns, TheWorkerGetsTheSecretAndNoProcessHasItInItsEnvironment) {
  Program("worker",
          absl::StrCat("read -r secret; echo \"$secret\"; echo \"${SCALELAB_ALLOCATION_SECRET-none}\"\n",
                       "grep -l -a ", secret_, " /proc/[0-9]*/environ\n"));
  const CommandResult result = Run();
  EXPECT_EQ(result.out, absl::StrCat(secret_, "\nnone\n")) << result.err;
}

TEST_F(SlurmScriptRuns, RequestsTheWorkersToEndAtSigtermAndWaits) {
  // The worker itself sends the signal to the script, after it has set its trap. It then only waits, because bash
  // cannot parse a trap while it parses a process substitution.
  Program("worker", "echo $$ > " + directory_ +
                        "/pid\n"
                        "tail -f /dev/null &\n"
                        "trap 'kill $!; echo terminated; exit 4' USR1\n"
                        "kill -TERM \"$BATCH\"\n"
                        "wait\n");
  for (const bool controller_is_there : {true, false}) {
    Program("scancel", controller_is_there ? "[ \"$*\" = '--signal=USR1 7.0' ] && kill -USR1 \"$(cat " +
                                                 directory_ + "/pid)\"\n"
                                           : "exit 1\n");
    const CommandResult result = Run("export SLURM_JOB_ID=7 BATCH=$$");
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_EQ(result.out, "terminated\n");
  }
}

}  // namespace
}  // namespace scalelab::server
