#include "agent/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace scalelab::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Execute = v1::ServeResponse::Execute;

const User kUser{1234, "/runs/alice"};

Execute Make(Execute::Program program, const std::vector<std::string>& arguments) {
  Execute execute;
  execute.set_program(program);
  for (const std::string& argument : arguments) execute.add_arguments(argument);
  return execute;
}

Execute Sbatch() {
  Execute execute =
      Make(Execute::SBATCH, {"--parsable", "--no-requeue", "--dependency=singleton", "--export=ALL",
                             "--job-name=a-1", "--chdir=/runs/alice/allocations/a-1"});
  execute.set_standard_input("#!/bin/bash\n");
  (*execute.mutable_environment())["SCALELAB_ALLOCATION_SECRET"] = "0123";
  return execute;
}

std::string Refusal(const Execute& execute) {
  const auto command = CheckCommand(execute, kUser);
  return command.ok() ? "allowed" : std::string(command.status().message());
}

TEST(AgentChecks, AJobOfTheCoordinatorIsSubmitted) {
  const auto command = CheckCommand(Sbatch(), kUser);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->argv[0], "sbatch");
  EXPECT_EQ(command->job, "a-1");
  EXPECT_THAT(command->variables, ElementsAre("SCALELAB_ALLOCATION_SECRET=0123"));
}

TEST(AgentChecks, SbatchTakesNoOtherOption) {
  for (const char* argument : {"--wrap=reboot", "--uid=0", "script.sh", "--export=NONE", "-o",
                               "--output=/etc/passwd", "--dependency=after:1", "--job-name"}) {
    Execute execute = Sbatch();
    execute.add_arguments(argument);
    EXPECT_THAT(Refusal(execute), HasSubstr("is not allowed")) << argument;
  }
}

TEST(AgentChecks, SbatchNeedsANameADirectoryAndAScript) {
  for (int missing : {2, 4, 5}) {
    Execute execute = Sbatch();
    execute.mutable_arguments()->DeleteSubrange(missing, 1);
    EXPECT_THAT(Refusal(execute), HasSubstr("needs the argument")) << missing;
  }
  Execute execute = Sbatch();
  execute.clear_standard_input();
  EXPECT_THAT(Refusal(execute), HasSubstr("no script"));
  execute.set_standard_input("#!" + std::string(2 << 20, ' '));
  EXPECT_THAT(Refusal(execute), HasSubstr("longer than 1 MiB"));
}

TEST(AgentChecks, TheDirectoryOfAJobIsBelowThatOfTheUser) {
  for (const char* directory : {"/tmp", "/runs/alice", "/runs/alice/allocations/other",
                                "/runs/bob/allocations/a-1", "/runs/alice/allocations/a-1/..", "relative"}) {
    Execute execute = Sbatch();
    execute.set_arguments(5, std::string("--chdir=") + directory);
    EXPECT_THAT(Refusal(execute), HasSubstr("the directory of the job must be")) << directory;
  }
}

TEST(AgentChecks, AJobNameHasNoPath) {
  for (const char* name : {"", "a/b", "..", "-x", "a b", "a\nb"}) {
    Execute execute = Sbatch();
    execute.set_arguments(4, std::string("--job-name=") + name);
    execute.set_arguments(5, std::string("--chdir=/runs/alice/allocations/") + name);
    EXPECT_NE(Refusal(execute), "allowed") << name;
  }
}

TEST(AgentChecks, OnlyOwnJobsAreListedAndCancelled) {
  EXPECT_EQ(Refusal(Make(Execute::SQUEUE,
                         {"--user=1234", "--all", "--noheader", "--states=all", "--Format=JobID"})),
            "allowed");
  EXPECT_EQ(Refusal(Make(Execute::SACCT, {"--uid=1234", "--allocations", "--name=a,b"})), "allowed");
  EXPECT_EQ(Refusal(Make(Execute::SCANCEL, {"--user=1234", "--name=a-1"})), "allowed");
  EXPECT_EQ(Refusal(Make(Execute::SCANCEL, {"--user=1234", "--name=a-1", "17"})), "allowed");
  EXPECT_EQ(Refusal(Make(Execute::SCANCEL, {"--user=1234", "17", "18_2"})), "allowed");
  for (const auto& execute : {Make(Execute::SQUEUE, {"--all"}), Make(Execute::SQUEUE, {"--user=0"}),
                              Make(Execute::SACCT, {"--uid=0"}), Make(Execute::SQUEUE, {"--user=12345"}),
                              Make(Execute::SCANCEL, {"17"}), Make(Execute::SCANCEL, {"--user=1234"}),
                              Make(Execute::SCANCEL, {"--user=1234", "--name="}),
                              Make(Execute::SCANCEL, {"--user=1234", "--user=0", "17"}),
                              Make(Execute::SCANCEL, {"--user=1234", "--state=PENDING", "17"}),
                              Make(Execute::SCANCEL, {"--user=1234", "-f", "17"})}) {
    EXPECT_NE(Refusal(execute), "allowed") << execute.ShortDebugString();
  }
}

TEST(AgentChecks, ScontrolOnlyShows) {
  EXPECT_EQ(Refusal(Make(Execute::SCONTROL, {"show", "config"})), "allowed");
  for (const auto& execute :
       {Make(Execute::SCONTROL, {}), Make(Execute::SCONTROL, {"update", "jobid=1", "nice=-5"}),
        Make(Execute::SCONTROL, {"show", "-d"}), Make(Execute::SCONTROL, {"reboot"})}) {
    EXPECT_NE(Refusal(execute), "allowed") << execute.ShortDebugString();
  }
}

TEST(AgentChecks, NoOtherProgramIsExecuted) {
  EXPECT_THAT(Refusal(Make(Execute::PROGRAM_UNSPECIFIED, {})), HasSubstr("not one of those"));
  EXPECT_THAT(Refusal(Make(static_cast<Execute::Program>(7), {})), HasSubstr("not one of those"));
}

TEST(AgentChecks, VariablesAreLimited) {
  Execute execute = Make(Execute::SINFO, {"--all"});
  (*execute.mutable_environment())["SLURM_TIME_FORMAT"] = "%s";
  EXPECT_EQ(Refusal(execute), "allowed");
  (*execute.mutable_environment())["LD_PRELOAD"] = "/tmp/evil.so";
  EXPECT_THAT(Refusal(execute), HasSubstr("LD_PRELOAD"));
  execute.clear_environment();
  (*execute.mutable_environment())["SCALELAB_ALLOCATION_SECRET"] = "0";
  EXPECT_THAT(Refusal(execute), HasSubstr("is not allowed"));
}

TEST(AgentChecks, ArgumentsAndStandardInputAreLimited) {
  Execute execute = Make(Execute::SINFO, std::vector<std::string>(2000, "--all"));
  EXPECT_THAT(Refusal(execute), HasSubstr("too many"));
  EXPECT_THAT(Refusal(Make(Execute::SINFO, {"--Format=" + std::string(200'000, 'a')})),
              HasSubstr("too long"));
  EXPECT_THAT(Refusal(Make(Execute::SINFO, {"--Format=a\nb"})), HasSubstr("control characters"));
  execute = Make(Execute::SINFO, {"--all"});
  execute.set_standard_input("x");
  EXPECT_THAT(Refusal(execute), HasSubstr("standard input"));
}

TEST(AgentChecks, PathsBelowADirectory) {
  EXPECT_TRUE(CheckBelow("/runs/alice/1/2/x", "/runs/alice").ok());
  for (const char* path : {"/runs/alice", "/runs/alice/", "/runs/alicex/1", "/runs/alice/../bob",
                           "/runs/alice/./x", "/runs/alice//x", "x", ""}) {
    EXPECT_FALSE(CheckBelow(path, "/runs/alice").ok()) << path;
  }
}

}  // namespace
}  // namespace scalelab::agent
