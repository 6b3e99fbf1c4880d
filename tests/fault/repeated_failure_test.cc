// Failures that repeat: they are retried with backoff, and nothing that was submitted is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;

constexpr char kStudy[] =
    "study: s\nfixed: {model: resnet8, dataset: synthetic, max_steps: 1, global_batch: 8}\n"
    "measure: {evaluate: false}\nmatrix: {ranks: [1]}\nrepeats: ";

TEST(RepeatedFailure, AWorkerThatCannotStartIsStartedAgainWithBackoff) {
  Service service({"--local-slots", "1", "--worker-program", "/bin/false"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(absl::StrCat(kStudy, "1\n"));
  const auto jobs = [&] {
    const auto entries = std::filesystem::recursive_directory_iterator(service.data());
    return std::count_if(begin(entries), end(entries),
                         [](const auto& entry) { return entry.path().filename() == "job.json"; });
  };
  ASSERT_TRUE(Eventually([&] { return jobs() >= 3; }, 30)) << "the first retries come soon";
  const double begin = Now();
  const auto before = jobs();
  ASSERT_TRUE(Eventually([&] { return jobs() > before; }, 30));
  EXPECT_GT(Now() - begin, 0.5) << "no tight loop";
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(service.Run({"study", "explain", study}).out, "ended before an attempt began");
  }));
}

TEST(RepeatedFailure, AStudyWhoseFilesCannotBeWrittenIsPausedAndThenGoesOn) {
  Service service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const std::string obstacle = service.data() + "/runs/1";
  WriteFile(obstacle, "a file in the place of the directory of study 1");
  const std::string study = service.Submit(absl::StrCat(kStudy, "4\n"));
  EXPECT_EQ(service.WaitFor(study, 60), 5);
  const auto shown = service.Json({"study", "show", study})["study"];
  EXPECT_THAT(shown["pause_reason"].get<std::string>(),
              HasSubstr("attempts in a row could not write their files"));
  EXPECT_EQ(shown["counts"].value("failed", 0), 0) << shown;
  EXPECT_THAT(service.Run({"study", "explain", study}).out, HasSubstr("scalelab study resume"));

  std::filesystem::remove(obstacle);
  EXPECT_EQ(service.Run({"study", "resume", study}).code, 0);
  EXPECT_EQ(service.WaitFor(study, 60), 0) << service.Run({"run", "list", study}).out;
}

TEST(RepeatedFailure, FailedRunsOfAStudyThatIsOverAreRetried) {
  Service service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const std::string gate = service.dir() + "/gate";
  const std::string study = service.Submit(
      absl::StrCat("study: s\nfixed: {engine: custom, command: [sh, -c, 'test -e ", gate,
                   " && echo \"{\\\"time\\\":1,\\\"event\\\":\\\"finish\\\",\\\"metrics\\\":{}}\" >> "
                   "$SCALELAB_EVENTS']}\nmatrix: {ranks: [1]}\nrepeats: 2\nretry: {max: 0}\n"));
  EXPECT_EQ(service.WaitFor(study, 60), 5);
  const Output nothing = service.Run({"run", "retry", "99"});
  EXPECT_NE(nothing.code, 0);
  WriteFile(gate, "");
  const std::string run = service.Json({"run", "list", study})["runs"][0]["name"];
  const Output one = service.Run({"run", "retry", run});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(service.WaitFor(study, 60), 5) << "the other run has still failed";
  const auto retried = service.Json({"run", "show", run})["run"];
  EXPECT_EQ(retried["state"], "SUCCEEDED");
  EXPECT_EQ(retried["attempts"].size(), 2u);
  EXPECT_NE(service.Run({"run", "retry", run}).code, 0) << "it has succeeded";
  EXPECT_EQ(service.Run({"study", "retry", study, "--failed"}).code, 0);
  EXPECT_EQ(service.WaitFor(study, 60), 0) << service.Run({"run", "list", study}).out;
  const Output again = service.Run({"study", "retry", study, "--failed"});
  EXPECT_NE(again.code, 0);
  EXPECT_THAT(again.err, HasSubstr("has no failed run; nothing is changed"));
}

}  // namespace
}  // namespace scalelab::e2e
