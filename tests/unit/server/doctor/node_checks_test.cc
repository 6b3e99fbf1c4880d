#include "server/doctor/node_checks.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/doctor/findings.h"

namespace scalelab::server::doctor {
namespace {

using testing::ElementsAre;

const NodeExpectation kExpected{.worker_program = "/opt/bin/scalelab-worker",
                                .version = "1.2",
                                .runs_dir = "/shared/runs",
                                .directory = "/shared/runs/doctor-x",
                                .word = "abc",
                                .server_host = "login1",
                                .server_port = 7600,
                                .user = 1000};
const absl::Time kSubmitted = absl::FromUnixSeconds(1'000'000'000), kSeen = kSubmitted + absl::Seconds(5);

constexpr char kGood[] =
    "node n1\ntime 1000000003.5\nuser 1000\nversion scalelab-worker 1.2\nword abc\nwrite yes\nconnect "
    "yes\nend yes\n";

// Interprets the output of a healthy node in which one part was replaced.
Findings With(const std::string& part, const std::string& replacement) {
  return JudgeNode(absl::StrReplaceAll(kGood, {{part, replacement}}), kExpected, kSubmitted, kSeen);
}

TEST(NodeChecks, AGoodNodeIsOneLine) { EXPECT_THAT(With("", ""), ElementsAre(IsOk("n1 has the programs"))); }

TEST(NodeChecks, EachMistakeIsAnErrorThatNamesTheNode) {
  EXPECT_THAT(With("user 1000", "user 1003"), ElementsAre(IsError("number 1000 here and 1003 on n1")));
  EXPECT_THAT(
      With("version scalelab-worker 1.2", "missing /opt/bin/scalelab-worker\nversion bash: not found"),
      ElementsAre(IsError("n1 does not have /opt/bin/scalelab-worker")));
  EXPECT_THAT(With("word", "library /opt/bin/scalelab-trainer libtorch.so\nword"),
              ElementsAre(IsError("on n1: /opt/bin/scalelab-trainer: libtorch.so")));
  EXPECT_THAT(With("word abc", "word cat: No such file or directory"),
              ElementsAre(IsError("another directory")));
  EXPECT_THAT(With("write yes", "write no"), ElementsAre(IsError("cannot write to /shared/runs on n1")));
  EXPECT_THAT(With("connect yes", "connect bash: connect: Connection refused"),
              ElementsAre(IsError("n1 cannot connect to login1:7600: bash: connect: Connection refused")));
  EXPECT_THAT(With("end yes", ""), ElementsAre(IsError("did not run to its end")));
}

TEST(NodeChecks, AnotherVersionIsAWarning) {
  EXPECT_THAT(With("worker 1.2", "worker 1.1"), ElementsAre(IsWarning("n1 has scalelab-worker 1.1")));
}

TEST(NodeChecks, AClockIsWrongIfItWasNotBetweenSubmissionAndEnd) {
  EXPECT_THAT(With("1000000003.5", "1000000015"), ElementsAre(IsWarning("n1 is at least 10s ahead")));
  EXPECT_THAT(With("1000000003.5", "999999980"), ElementsAre(IsWarning("n1 is at least 20s behind")));
  EXPECT_THAT(With("1000000003.5", "1000000005.9"), ElementsAre(IsOk("")));
}

TEST(NodeChecks, ValuesAreQuotedInTheScript) {
  NodeExpectation expected = kExpected;
  expected.directory = "/it's here";
  EXPECT_THAT(NodeScript(expected), testing::HasSubstr("directory='/it'\\''s here'\n"));
}

TEST(NodeChecks, TheScriptConnectsToAnIpv6AddressWithoutItsBrackets) {
  NodeExpectation expected = kExpected;
  expected.server_host = "[2001:db8::1]";
  EXPECT_THAT(NodeScript(expected), testing::HasSubstr("host='2001:db8::1'\n"));
  EXPECT_THAT(JudgeNode(absl::StrReplaceAll(kGood, {{"connect yes", "connect timeout"}}), expected,
                        kSubmitted, kSeen),
              ElementsAre(IsError("cannot connect to [2001:db8::1]:7600")));
}

}  // namespace
}  // namespace scalelab::server::doctor
