#include "server/scheduler/slurm_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduler/slurm_client.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uid_t kUs = 1000;

Queue Parse(const std::string& text) { return ParseQueue(text, kUs); }

// Output of Slurm 22.05.8 for kSqueueColumns.
constexpr char kReal[] =
    "18|1000|PENDING|PartitionNodeLimit|0|N/A|0:00|2:00:00||tok-e\n"
    "23|1000|PENDING|BeginTime|0|1795290339|0:00|2:00:00||tok-b\n"
    "24|1000|PENDING|ReqNodeNotAvail, UnavailableNodes:n[1-3]|0|N/A|0:00|1-02:03:04||tok-n\n"
    "22|1000|RUNNING|None|0|1795286739|0:02|2:00:00|b1|tok-r\n"
    "3|1000|FAILED|NonZeroExitCode|768|1795279138|0:00|2:00:00|b3|tok-f\n"
    "1|1000|CANCELLED|None|0|1795279163|0:25|5:00|b[1-2]|tok-c\n"
    "4|1001|RUNNING|None|0|1795286739|0:02|2:00:00|b2|tok-s\n"
    "5|1000|FAILED|NonZeroExitCode|256|1795279138|0:00|UNLIMITED|b3|evil|name\n";

QueueRow Row(const std::string& state, const std::string& reason = "None", int exit_status = 0) {
  const Queue queue = Parse(
      absl::StrCat("7|1000|", state, "|", reason, "|", exit_status, "|1795286739|0:30|1:00:00|n1|tok\n"));
  EXPECT_EQ(queue.malformed, 0) << queue.first_malformed;
  return queue.jobs.empty() ? QueueRow() : queue.jobs.begin()->second.front();
}

TEST(SlurmQueue, ParsesRealLines) {
  const Queue queue = Parse(kReal);
  EXPECT_EQ(queue.malformed, 0) << queue.first_malformed;
  EXPECT_FALSE(queue.incomplete);
  ASSERT_EQ(queue.jobs.size(),
            6u);  // without the job of the other user and the one whose name is not a token
  const QueueRow& runs = queue.jobs.at("tok-r").front();
  EXPECT_EQ(runs.id, "22");
  EXPECT_EQ(runs.slurm_state, "RUNNING");
  EXPECT_EQ(runs.reason, "");
  EXPECT_EQ(runs.end, absl::FromUnixSeconds(1795286739));
  EXPECT_EQ(runs.used, absl::Seconds(2));
  EXPECT_EQ(runs.limit, absl::Hours(2));
  EXPECT_EQ(runs.nodes, "b1");
  EXPECT_EQ(queue.jobs.at("tok-f").front().exit_code, 3);
  EXPECT_EQ(queue.jobs.at("tok-n").front().reason, "ReqNodeNotAvail, UnavailableNodes:n[1-3]");
  EXPECT_EQ(queue.jobs.at("tok-n").front().limit, absl::Hours(26) + absl::Seconds(184));
  EXPECT_EQ(queue.jobs.at("tok-e").front().nodes, "");
}

TEST(SlurmQueue, ParsesTheSameColumnsOfSacct) {
  const Queue queue = Parse(
      "12|1000|CANCELLED by 0|None|0:15|1795279138|00:10:00|01:00:00|None assigned|tok\n"
      "13|1000|COMPLETED|None|2:0|Unknown|1-00:00:00|Partition_Limit|n[1-2]|tok2\n");
  EXPECT_EQ(queue.malformed, 0) << queue.first_malformed;
  const QueueRow& cancelled = queue.jobs.at("tok").front();
  EXPECT_EQ(cancelled.slurm_state, "CANCELLED");
  EXPECT_EQ(cancelled.cancelled_by, "0");
  EXPECT_EQ(cancelled.signal, 15);
  EXPECT_EQ(cancelled.nodes, "");
  EXPECT_EQ(queue.jobs.at("tok2").front().exit_code, 2);
  EXPECT_EQ(queue.jobs.at("tok2").front().used, absl::Hours(24));
}

// Prints the same text for each program. Programs fail if there is an error message.
class PrintingRunner final : public CommandRunner {
 public:
  explicit PrintingRunner(std::string text, std::string error = "")
      : text_(std::move(text)), error_(std::move(error)) {}
  absl::StatusOr<CommandResult> Run(const std::vector<std::string>&, const std::string&,
                                    const std::vector<std::string>&, absl::Duration) override {
    CommandResult result;
    result.exit_code = error_.empty() ? 0 : 1;
    result.out = text_;
    result.err = error_;
    return result;
  }

 private:
  const std::string text_, error_;
};

// A squeue or sacct that lists a job for the first and the last name of each query.
class NamedJobs final : public CommandRunner {
 public:
  absl::StatusOr<CommandResult> Run(const std::vector<std::string>& argv, const std::string&,
                                    const std::vector<std::string>&, absl::Duration) override {
    CommandResult result;
    result.exit_code = 0;
    for (absl::string_view argument : argv) {
      EXPECT_LT(argument.size(), 128u << 10);
      if (!absl::ConsumePrefix(&argument, "--name=")) continue;
      const std::vector<absl::string_view> names = absl::StrSplit(argument, ',');
      for (const absl::string_view name : {names.front(), names.back()})
        absl::StrAppend(&result.out, "7|1000|RUNNING|None|0|1795286739|0:30|1:00:00|n1|", name, "\n");
    }
    return result;
  }
};

TEST(SlurmQueue, AJobNameOfOneUserDoesNotHideTheJobsOfTheOthers) {
  const std::string odd = "9|1001|RUNNING|None|0|1795286739|0:02|2:00:00|b2|a line\nbreak\n";
  PrintingRunner some(odd), none("break\n");
  const auto queues = SlurmClient(some, some, kUs, absl::Seconds(1)).JobsOf({kUs, 1001}, {"tok"});
  ASSERT_TRUE(queues.ok()) << queues.status();
  EXPECT_TRUE(queues->at(kUs).jobs.empty());
  EXPECT_EQ(queues->at(kUs).malformed, 1);
  EXPECT_TRUE(
      absl::IsUnavailable(SlurmClient(none, none, kUs, absl::Seconds(1)).JobsOf({kUs}, {"tok"}).status()));
}

TEST(SlurmQueue, QueriesManyNamesInParts) {
  std::vector<std::string> names;
  for (int i = 0; i < 2500; ++i) names.push_back(absl::StrCat(std::string(56, 'x'), "-", i));
  NamedJobs squeue;
  const auto queues = SlurmClient(squeue, squeue, kUs, absl::Seconds(1)).JobsOf({kUs}, names);
  ASSERT_TRUE(queues.ok()) << queues.status();
  EXPECT_EQ(queues->at(kUs).jobs.size(), 6u);
  const auto ended = SlurmClient(squeue, squeue, kUs, absl::Seconds(1)).Accounted(names);
  ASSERT_TRUE(ended.ok()) << ended.status();
  for (const int i : {0, 999, 1000, 1999, 2000, 2499}) {
    EXPECT_TRUE(queues->at(kUs).jobs.contains(names[i])) << i;
    EXPECT_TRUE(ended->jobs.contains(names[i])) << i;
  }
}

TEST(SlurmQueue, ACancellationThatDidNotReachAllJobsHasFailed) {
  const std::string error = "scancel: error: Kill job error on job id ";
  const std::string gone = error + "5: Invalid job id specified\n";
  PrintingRunner first("", gone),
      both("", absl::StrCat(gone, error, "6: Socket timed out on send/recv operation\n"));
  EXPECT_TRUE(SlurmClient(first, first, kUs, absl::Seconds(1)).CancelIds({"5"}).ok());
  EXPECT_TRUE(absl::IsUnavailable(SlurmClient(both, both, kUs, absl::Seconds(1)).CancelIds({"5", "6"})));
}

TEST(SlurmQueue, CountsAndIgnoresMalformedLines) {
  for (const char* line : {
           "x",
           "22|1000|RUNNING|None|0|1795286739|0:02|2:00:00|b1",         // no name
           "22|root|RUNNING|None|0|1795286739|0:02|2:00:00|b1|tok",     // a user name instead of a uid
           "22|-1|RUNNING|None|0|1795286739|0:02|2:00:00|b1|tok",       //
           "|1000|RUNNING|None|0|1795286739|0:02|2:00:00|b1|tok",       // no id
           "2 2|1000|RUNNING|None|0|1795286739|0:02|2:00:00|b1|tok",    //
           "22|1000||None|0|1795286739|0:02|2:00:00|b1|tok",            // no state
           "22|1000|RUN\x1b[1m|None|0|1795286739|0:02|2:00:00|b1|tok",  // a colour escape
           "22|1000|RUNNING|None|?|1795286739|0:02|2:00:00|b1|tok",     //
           "slurm_load_jobs error: Socket timed out on send/recv operation",
       }) {
    const Queue queue = Parse(absl::StrCat(kReal, line, "\n"));
    EXPECT_EQ(queue.malformed, 1) << line;
    EXPECT_EQ(queue.jobs.size(), 6u) << line;
    EXPECT_EQ(queue.jobs.at("tok-r").size(), 1u) << line;
  }
  const Queue queue = Parse("22|1000|\x07\xff|None|0|x|0:02|2:00:00|b1|tok\n");
  EXPECT_THAT(queue.first_malformed, HasSubstr("22|1000|??|"));
  EXPECT_TRUE(queue.Mentions("tok"));
  EXPECT_FALSE(queue.Mentions("other"));
}

TEST(SlurmQueue, DetectsIncompleteOutput) {
  const std::string text = kReal;
  for (size_t length = 0; length <= text.size(); ++length) {
    const Queue queue = Parse(text.substr(0, length));
    EXPECT_EQ(queue.incomplete, length > 0 && text[length - 1] != '\n') << length;
  }
}

TEST(SlurmQueue, FindsTheIdOnlyInCompleteOutputOfSbatch) {
  EXPECT_EQ(ParseSubmitted("123\n"), "123");
  EXPECT_EQ(ParseSubmitted("123;cluster\n"), "123");
  EXPECT_EQ(ParseSubmitted("a notice of the site\n123\n"), "123");
  for (const char* text : {"", "\n", "12", "123 \n456", "Submitted batch job 123\n", "-1\n", "12a\n",
                           "1;2;3\n", "1234567890123\n"}) {
    EXPECT_EQ(ParseSubmitted(text), std::nullopt) << text;
  }
}

TEST(SlurmQueue, ParsesDurations) {
  EXPECT_EQ(ParseSlurmDuration("0:00"), absl::ZeroDuration());
  EXPECT_EQ(ParseSlurmDuration("05:07"), absl::Seconds(307));
  EXPECT_EQ(ParseSlurmDuration("365-00:00:00"), absl::Hours(24 * 365));
  EXPECT_EQ(ParseSlurmDuration("infinite"), absl::InfiniteDuration());
  for (const char* text : {"", "7", "-1:00", "1:2:3:4", "1-", "x:00", "99999999999:00", "1:-1"})
    EXPECT_EQ(ParseSlurmDuration(text), std::nullopt) << text;
}

TEST(SlurmQueue, MapsEveryState) {
  struct Meaning {
    const char* word;
    State state;
  };
  for (const Meaning& meaning : std::initializer_list<Meaning>{
           {"PENDING", State::kPending},      {"CONFIGURING", State::kPending},
           {"REQUEUED", State::kPending},     {"REQUEUE_HOLD", State::kPending},
           {"SPECIAL_EXIT", State::kPending}, {"RUNNING", State::kRunning},
           {"COMPLETING", State::kRunning},   {"SUSPENDED", State::kRunning},
           {"STOPPED", State::kRunning},      {"SIGNALING", State::kRunning},
           {"STAGE_OUT", State::kRunning},    {"RESIZING", State::kRunning},
           {"COMPLETED", State::kCompleted},  {"FAILED", State::kFailed},
           {"CANCELLED", State::kCancelled},  {"REVOKED", State::kCancelled},
           {"TIMEOUT", State::kTimeout},      {"PREEMPTED", State::kPreempted},
           {"NODE_FAIL", State::kNodeFail},   {"OUT_OF_MEMORY", State::kOutOfMemory},
           {"BOOT_FAIL", State::kBootFail},   {"DEADLINE", State::kDeadline}}) {
    const std::optional<JobStatus> status = StatusOf(Row(meaning.word));
    ASSERT_TRUE(status) << meaning.word;
    EXPECT_EQ(status->state, meaning.state) << meaning.word;
    EXPECT_EQ(status->token, "tok");
    EXPECT_EQ(status->external_id, "7");
    EXPECT_EQ(status->reason.empty(), std::string(meaning.word) == "RUNNING") << meaning.word;
    EXPECT_EQ(status->ending, std::string(meaning.word) == "COMPLETING");
  }
  EXPECT_EQ(StatusOf(Row("LEVITATING")), std::nullopt);
  EXPECT_EQ(StatusOf(Row("RUNNING"))->ends_at, absl::FromUnixSeconds(1795286739));
  EXPECT_EQ(StatusOf(Row("PENDING"))->ends_at, absl::InfiniteFuture());
}

TEST(SlurmQueue, ExplainsHowAJobEnded) {
  EXPECT_THAT(StatusOf(Row("FAILED", "NonZeroExitCode", 3 << 8))->reason, HasSubstr("status 3"));
  EXPECT_THAT(StatusOf(Row("FAILED", "NonZeroExitCode", 9))->reason, HasSubstr("signal 9"));
  EXPECT_THAT(StatusOf(Row("FAILED", "NonZeroExitCode", 127 << 8))->reason,
              HasSubstr("visible on every node"));
  EXPECT_EQ(StatusOf(Row("CANCELLED"), Canceller::kUs)->reason, "cancelled by this service");
  EXPECT_THAT(StatusOf(Row("CANCELLED"), Canceller::kSomebodyElse)->reason, HasSubstr("from outside"));
  EXPECT_THAT(StatusOf(Row("CANCELLED by 4242"), Canceller::kSomebodyElse)->reason,
              HasSubstr("user id 4242"));
  EXPECT_THAT(StatusOf(Row("TIMEOUT"))->reason, HasSubstr("1:00:00"));
}

TEST(SlurmQueue, AScriptThatEndsAfterTheWarningHasTimedOut) {
  QueueRow row = Row("COMPLETED");
  row.limit = absl::Hours(1);
  row.used = absl::Minutes(58);
  EXPECT_EQ(StatusOf(row)->state, State::kCompleted);
  row.used = absl::Minutes(59);
  EXPECT_EQ(StatusOf(row)->state, State::kTimeout);
  row.slurm_state = "FAILED";
  EXPECT_EQ(StatusOf(row)->state, State::kTimeout);
  row.slurm_state = "NODE_FAIL";
  EXPECT_EQ(StatusOf(row)->state, State::kNodeFail);
  row = Row("COMPLETED");
  row.limit = absl::InfiniteDuration();
  EXPECT_EQ(StatusOf(row)->state, State::kCompleted);
  row.limit = absl::Minutes(1);
  row.used = absl::Seconds(20);
  EXPECT_EQ(StatusOf(row)->state, State::kCompleted);
}

// Output of Slurm 22.05.8 with a grace time: squeue prints the time of the preemption with the state.
TEST(SlurmQueue, AScriptThatEndsInTheGraceTimeOfAPreemptionWasPreempted) {
  EXPECT_EQ(StatusOf(Row("COMPLETED N/A"))->state, State::kCompleted);
  EXPECT_EQ(StatusOf(Row("RUNNING 1795286700"))->state, State::kRunning);
  for (const char* state : {"COMPLETED 1795286700", "FAILED 1795286700"}) {
    const std::optional<JobStatus> status = StatusOf(Row(state));
    EXPECT_EQ(status->state, State::kPreempted) << state;
    EXPECT_THAT(status->reason, HasSubstr("a job of higher priority")) << state;
  }
  EXPECT_EQ(StatusOf(Row("NODE_FAIL 1795286700"))->state, State::kNodeFail);
  EXPECT_EQ(StatusOf(Row("CANCELLED by 4242"))->state, State::kCancelled);
}

TEST(SlurmQueue, ExplainsPendingReasonsWithTheirCode) {
  EXPECT_EQ(PendingReason("Resources"), "waits for free resources and is next in the queue (Resources)");
  EXPECT_EQ(PendingReason(""), "waits for Slurm's next scheduling cycle (None)");
  EXPECT_THAT(
      PendingReason("ReqNodeNotAvail, UnavailableNodes:n[1-3]"),
      AllOf(HasSubstr("down, drained or reserved"), HasSubstr("(ReqNodeNotAvail, UnavailableNodes:n[1-3])")));
  EXPECT_THAT(PendingReason("QOSMaxJobsPerUserLimit"), HasSubstr("running jobs of its QOS"));
  EXPECT_THAT(PendingReason("QOSGrpCpuLimit"), HasSubstr("all jobs of its QOS share"));
  EXPECT_THAT(PendingReason("AssocMaxJobsLimit"), HasSubstr("of its account"));
  EXPECT_THAT(PendingReason("PartitionTimeLimit"), HasSubstr("shorten resources.time"));
  EXPECT_THAT(PendingReason("JobHeldAdmin"), HasSubstr("by an administrator"));
  EXPECT_THAT(
      PendingReason("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
                    "partitions"),
      HasSubstr("waits for nodes that are down, drained or reserved (Nodes required"));
  EXPECT_EQ(PendingReason("SomethingNew"), "waits (SomethingNew)");
}

// Reason codes of squeue 22.05.8.
TEST(SlurmQueue, ExplainsThatAJobAboveALimitNeverStarts) {
  for (const char* code : {"QOSMaxCpuPerJobLimit", "QOSMaxMemoryPerJob", "QOSMaxNodePerJobLimit",
                           "QOSMaxWallDurationPerJobLimit", "QOSMaxCpuPerNode", "QOSMinCpuNotSatisfied",
                           "AssocMaxCpuPerJobLimit", "AssocMaxWallDurationPerJobLimit",
                           "AssocMaxCpuMinutesPerJobLimit", "AssocMaxCpuPerNode"}) {
    EXPECT_THAT(PendingReason(code), HasSubstr("it starts only if the limit changes")) << code;
  }
  for (const char* code : {"QOSMaxCpuPerUserLimit", "QOSGrpJobsLimit", "AssocGrpMemLimit", "AssocGrpCpuLimit",
                           "AssocGrpJobsLimit", "MaxJobsPerAccount"}) {
    EXPECT_THAT(PendingReason(code), testing::StartsWith("waits for a limit")) << code;
  }
  EXPECT_THAT(PendingReason("MaxJobsPerAccount"), HasSubstr("running jobs of its account"));
}

TEST(SlurmQueue, ChoosesTheRunningJobThenTheOneThatRan) {
  const auto job = [](const std::string& id, const std::string& state, const std::string& nodes) {
    QueueRow row;
    row.id = id;
    row.slurm_state = state;
    row.nodes = nodes;
    return row;
  };
  const auto chosen = [](const std::vector<QueueRow>& rows) { return Choose(rows).id; };
  const QueueRow waits = job("1", "PENDING", ""), waits_too = job("2", "PENDING", "");
  const QueueRow runs = job("3", "RUNNING", "n1"), ran = job("4", "FAILED", "n1");
  const QueueRow never_ran = job("5", "CANCELLED", "");
  EXPECT_EQ(chosen({waits, waits_too}), "1");
  EXPECT_EQ(chosen({waits, runs}), "3");
  EXPECT_EQ(chosen({waits, ran}), "4");
  EXPECT_EQ(chosen({never_ran, waits}), "1");
  EXPECT_EQ(chosen({ran, runs}), "3");
  EXPECT_EQ(chosen({never_ran, ran}), "4");
}

TEST(SlurmQueue, RejectsTokensThatAProgramCouldMisread) {
  EXPECT_TRUE(IsToken("0fa81c97-b28a-48c9-afce-94e87bf04c0e"));
  for (const char* text : {"", "-a", "--all", "a b", "a,b", "a|b", "a\n", "../a", "a*"})
    EXPECT_FALSE(IsToken(text)) << text;
  EXPECT_FALSE(IsToken(std::string(65, 'a')));
}

}  // namespace
}  // namespace scalelab::server
