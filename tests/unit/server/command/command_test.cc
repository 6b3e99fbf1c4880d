#include "server/command/command.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

extern "C" {  // missing in the header of glibc 2.36
#include <sys/pidfd.h>
}

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

CommandResult Shell(const std::string& script, absl::Duration timeout = absl::Seconds(30),
                    const std::string& input = "") {
  const absl::StatusOr<CommandResult> result =
      RunCommand({"sh", "-c", script}, input, {absl::StrCat("PATH=", getenv("PATH")), "COLOUR=red"}, timeout);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(CommandResult());
}

TEST(Command, ReturnsOutputAndStatusAndPassesTheEnvironment) {
  const CommandResult result =
      Shell("cat; echo $COLOUR; echo oops >&2; exit 7", absl::Seconds(30), "input\n");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.out, "input\nred\n");
  EXPECT_EQ(result.err, "oops\n");
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(Shell("env").out.find("HOME="), std::string::npos);
}

TEST(Command, PassesLargeInputAndOutput) {
  const std::string input(1 << 20, 'x');
  EXPECT_EQ(Shell("cat", absl::Seconds(30), input).out.size(), input.size());
  // A program that does not read its input.
  EXPECT_EQ(Shell("true", absl::Seconds(30), input).exit_code, 0);
}

TEST(Command, CutsEndlessOutputAndKillsTheProgram) {
  const CommandResult result = Shell("yes");
  EXPECT_TRUE(result.truncated);
  EXPECT_FALSE(result.ok());
  EXPECT_LT(result.out.size(), 20u << 20);
}

TEST(Command, TheTimeoutKillsItAndItsChildrenAndKeepsTheOutput) {
  const absl::Time begin = absl::Now();
  const CommandResult result = Shell("echo 123; tail -f /dev/null & echo $! >&2; wait", absl::Seconds(1));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.out, "123\n");
  const int child = pidfd_open(atoi(result.err.c_str()), 0);  // fails when the child was already reaped
  pollfd ended{child, POLLIN, 0};
  EXPECT_TRUE(child < 0 || poll(&ended, 1, 20'000) == 1);
  if (child >= 0) close(child);
}

TEST(Command, DoesNotWaitForChildrenThatKeepTheOutputOpen) {
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Shell("tail -f /dev/null & echo done").out, "done\n");
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

TEST(Command, TheProgramStartsWithoutBlockedSignals) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const CommandResult result = Shell("kill -TERM $$; echo still here");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(result.signal, SIGTERM);
  EXPECT_EQ(result.exit_code, -1);
  EXPECT_EQ(result.out, "");
}

TEST(Command, ReportsTheNameOfAMissingProgram) {
  const absl::Status status = RunCommand({"no-such-program"}, "", {}, absl::Seconds(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("no-such-program"));
  EXPECT_EQ(MissingProgram({"sh", "no-such-program", "neither"}), "no-such-program");
  EXPECT_EQ(MissingProgram({"sh"}), "");
}

TEST(Command, PassesOnOnlyWhatJobsNeedOfTheEnvironment) {
  for (const char* name : {"NCCL_SOCKET_IFNAME", "SBATCH_PARTITION", "SQUEUE_FORMAT", "SLURM_CLUSTERS",
                           "SLURM_CONF", "SCALELAB_TOKEN", "AWS_SECRET_ACCESS_KEY", "CUDA_VISIBLE_DEVICES"}) {
    setenv(name, "x", 1);
  }
  const std::vector<std::string> environment = CommandEnvironment();
  EXPECT_THAT(environment, Contains(StartsWith("PATH=")));
  EXPECT_THAT(environment, Contains("NCCL_SOCKET_IFNAME=x"));
  EXPECT_THAT(environment, Contains("SLURM_CONF=x"));
  EXPECT_THAT(environment, Contains("LC_ALL=C.UTF-8"));
  for (const char* name : {"SBATCH_PARTITION", "SQUEUE_FORMAT", "SLURM_CLUSTERS", "SCALELAB_TOKEN",
                           "AWS_SECRET_ACCESS_KEY", "CUDA_VISIBLE_DEVICES"}) {
    EXPECT_THAT(environment, Not(Contains(StartsWith(absl::StrCat(name, "="))))) << name;
    unsetenv(name);
  }
}

}  // namespace
}  // namespace scalelab::server
