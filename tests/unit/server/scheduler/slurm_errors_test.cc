#include "server/scheduler/slurm_errors.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;
using testing::Not;

CommandResult Failed(const std::string& err, int exit_code = 1) {
  CommandResult result;
  result.exit_code = exit_code;
  result.err = err;
  return result;
}

JobRequest Request() {
  JobRequest request;
  request.nodes = 2;
  request.ranks_per_node = 4;
  request.cpus_per_rank = 2;
  request.gpus_per_rank = 1;
  request.memory_mib = 900;
  request.partition = "gpu";
  request.options = {{"account", "site"}, {"account", "lab"}};
  return request;
}

// Messages of sbatch 22.05.8 for wrong options.
struct Case {
  const char* err;
  int exit_code;
  Code code;
  const char* message;
};

TEST(SlurmErrors, InterpretsMessagesOfSbatch) {
  for (const Case& one : std::initializer_list<Case>{
           {"sbatch: error: invalid partition specified: nope\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
            1, Code::kInvalidArgument, "partition gpu"},
           {"sbatch: error: Batch job submission failed: Invalid feature specification\n", 1,
            Code::kInvalidArgument, "constraint (default)"},
           {"sbatch: error: Invalid generic resource (gres) specification\n", 1, Code::kInvalidArgument,
            "gpus_per_rank"},
           {"sbatch: error: CPU count per node can not be satisfied\n"
            "sbatch: error: Batch job submission failed: Requested node configuration is not available\n",
            1, Code::kInvalidArgument, "2 nodes with 4 ranks of 2 cores and 1 GPU each, 900 MiB per node"},
           {"sbatch: error: Batch job submission failed: Invalid account or account/partition combination "
            "specified\n",
            1, Code::kInvalidArgument, "account lab"},
           {"sbatch: error: Invalid --mail-type specification\n", 255, Code::kInvalidArgument,
            "correct sbatch_options"},
           {"sbatch: unrecognized option '--nosuch'\nTry \"sbatch --help\" for more information\n", 255,
            Code::kInvalidArgument, "correct sbatch_options"},
           {"sbatch: error: QOSMaxNodePerJobLimit\n"
            "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit "
            "limit, "
            "user's size and/or time limits)\n",
            1, Code::kInvalidArgument, "QOSMaxNodePerJobLimit"},
           {"sbatch: error: AssocMaxSubmitJobLimit\n"
            "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit "
            "limit, "
            "user's size and/or time limits)\n",
            1, Code::kResourceExhausted, "AssocMaxSubmitJobLimit"},
           {"sbatch: error: Batch job submission failed: Invalid qos specification\n", 1,
            Code::kInvalidArgument, "qos (default)"},
           {"sbatch: error: Batch job submission failed: User's group not permitted to use this partition\n",
            1, Code::kPermissionDenied, "partition gpu"},
       }) {
    const Refusal refusal = InterpretFailure(Failed(one.err, one.exit_code), Request());
    EXPECT_EQ(refusal.status.code(), one.code) << refusal.status;
    EXPECT_THAT(refusal.status.message(), HasSubstr(one.message));
    EXPECT_THAT(refusal.status.message(), Not(HasSubstr("\n")));
    EXPECT_FALSE(refusal.may_exist) << refusal.status;
  }
}

// sbatch 22.05.8 prints each code before a sentence that is the same for all codes.
TEST(SlurmErrors, TemporaryLimitsAreRetriedAndPermanentOnesRefused) {
  const auto refusal = [](const std::string& code) {
    return InterpretFailure(
               Failed(absl::StrCat("sbatch: error: ", code,
                                   "\nsbatch: error: Batch job submission failed: Job violates "
                                   "accounting/QOS policy (job submit limit, user's size and/or time "
                                   "limits)\n")),
               Request())
        .status;
  };
  for (const char* code :
       {"AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit", "QOSMaxSubmitJobPerUserLimit",
        "QOSGrpSubmitJobsLimit", "MaxSubmitJobsPerAccount", "QOSGrpCpuLimit", "QOSGrpCPUMinutesLimit"}) {
    EXPECT_EQ(refusal(code).code(), Code::kResourceExhausted) << code;
    EXPECT_THAT(refusal(code).message(), HasSubstr(code));
  }
  for (const char* code :
       {"QOSMaxCpuPerJobLimit", "QOSMaxMemoryPerJob", "QOSMaxCpuPerNode", "QOSMaxCpuPerUserLimit"}) {
    EXPECT_EQ(refusal(code).code(), Code::kInvalidArgument) << code;
    EXPECT_THAT(refusal(code).message(), HasSubstr("request fewer ranks")) << code;
  }
  EXPECT_EQ(refusal("QOSMaxWallDurationPerJobLimit").code(), Code::kInvalidArgument);
  EXPECT_THAT(refusal("QOSMaxWallDurationPerJobLimit").message(), HasSubstr("shorten resources.time"));
  EXPECT_THAT(refusal("QOSMinCpuNotSatisfied").message(), HasSubstr("request more"));
}

TEST(SlurmErrors, OnlyAFailedConnectionMeansThatThereIsNoJob) {
  const std::string failed = "sbatch: error: Batch job submission failed: ";
  EXPECT_FALSE(
      InterpretFailure(Failed(failed + "Unable to contact slurm controller (connect failure)\n"), Request())
          .may_exist);
  for (const char* words :
       {"Unable to contact slurm controller (send failure)",
        "Unable to contact slurm controller (receive failure)", "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received", "Unspecified error"}) {
    const Refusal refusal = InterpretFailure(Failed(failed + words + "\n"), Request());
    EXPECT_EQ(refusal.status.code(), Code::kUnknown) << words;
    EXPECT_TRUE(refusal.may_exist) << words;
    EXPECT_THAT(refusal.status.message(), HasSubstr(words));
  }
}

TEST(SlurmErrors, ACauseThatMayPassCountsMoreThanAPermanentOne) {
  const std::string failed = "sbatch: error: Batch job submission failed: ";
  const std::string denied = "/etc/site/limits: Permission denied\n";
  const std::string timed_out = failed + "Socket timed out on send/recv operation\n";
  const std::string unreachable = failed + "Unable to contact slurm controller (connect failure)\n";
  for (const auto& [err, code] : std::initializer_list<std::pair<std::string, Code>>{
           {denied + timed_out, Code::kUnknown},
           {timed_out + denied, Code::kUnknown},
           {timed_out + unreachable, Code::kUnknown},
           {absl::StrCat(denied, "one\ntwo\nthree\nfour\n", timed_out), Code::kUnknown},
           {absl::StrCat(denied, failed, "Connection timed out\n"), Code::kUnknown},
           {denied + unreachable, Code::kUnavailable},
           {absl::StrCat(denied, failed, "Resource temporarily unavailable\n"), Code::kResourceExhausted},
           {absl::StrCat("QOSMaxCpuPerUserLimit\n", failed, "Unable to create job record, try again\n"),
            Code::kResourceExhausted},
           {denied, Code::kPermissionDenied}}) {
    const Refusal refusal = InterpretFailure(Failed(err), Request());
    EXPECT_EQ(refusal.status.code(), code) << err << refusal.status;
    EXPECT_EQ(refusal.may_exist, code == Code::kUnknown) << err;
  }
}

TEST(SlurmErrors, AfterAKilledOrSilentSbatchTheJobMayExist) {
  CommandResult killed = Failed("sbatch: error: Slurm job queue full, sleeping and retrying\n", -1);
  killed.signal = 9;
  killed.timed_out = true;
  EXPECT_TRUE(InterpretFailure(killed, Request()).may_exist);
  EXPECT_THAT(InterpretFailure(killed, Request()).status.message(), HasSubstr("queue full"));
  CommandResult silent;
  silent.exit_code = 0;
  EXPECT_TRUE(InterpretFailure(silent, Request()).may_exist);
  EXPECT_TRUE(InterpretFailure(Failed(""), Request()).may_exist);
}

TEST(SlurmErrors, ShowsOnlyPrintableAsciiOfTheOutput) {
  CommandResult greeting;
  greeting.exit_code = 0;
  const std::string start(99, 'x');
  greeting.out = absl::StrCat(start, "\xc3\xa9\n");  // byte 100 is inside a character
  EXPECT_THAT(InterpretFailure(greeting, Request()).status.message(),
              HasSubstr(absl::StrCat("no job id in its output '", start, "?...'")));
  greeting.out = "\x1b[1mhello\n";
  EXPECT_THAT(InterpretFailure(greeting, Request()).status.message(), HasSubstr("output '?[1mhello'"));
}

TEST(SlurmErrors, AFailureReasonIsOnePrintableLine) {
  EXPECT_EQ(FailureReason(Failed("sbatch: error: one\nsbatch: error: one\n\n  plain \x1b[31mtwo\n")),
            "one; plain ?[31mtwo");
  EXPECT_THAT(FailureReason(Failed("")), HasSubstr("status 1"));
  CommandResult result = Failed("slow", -1);
  result.timed_out = true;
  EXPECT_EQ(FailureReason(result), "it did not end before the timeout: slow");
}

}  // namespace
}  // namespace scalelab::server
