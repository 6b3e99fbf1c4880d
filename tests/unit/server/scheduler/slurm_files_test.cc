// Tests of the Slurm scheduler while the filesystem of the directory of runs does not respond.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/hanging_directory.h"
#include "tests/fakes/slurm_standins.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Upper bound of the duration of a test step on a busy machine. Without a time limit a step hangs for ever.
constexpr std::chrono::seconds kPatience(60);

class SlurmFilesTest : public testing::Test {
 protected:
  SlurmFilesTest() {
    std::filesystem::create_directories(runs_ + "/allocations");
    slurm_.options().file_timeout = absl::Milliseconds(500);
    Restart();
  }
  // sinfo lists a node with 64 cores, but no job gets cores, so that no job starts.
  void Restart() {
    slurm_.Write("slots", "64");
    slurm_.Restart();
    slurm_.Write("slots", "0");
  }
  absl::StatusOr<std::string> Submit(const std::string& token) {
    return slurm_.scheduler().Submit(slurm_.Request(token));
  }
  // Submits until the job is accepted.
  absl::Status SubmitAgain(const std::string& token) {
    const absl::Time deadline = absl::Now() + absl::FromChrono(kPatience);
    absl::Status status = Submit(token).status();
    while (!status.ok() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(20));
      status = Submit(token).status();
    }
    return status;
  }
  // Calls `step`. If it does not end in time, fails and calls `unblock`, after which `step` must end.
  static void EndsInTime(const std::function<void()>& step, const std::function<void()>& unblock) {
    const std::future<void> ended = std::async(std::launch::async, step);
    if (ended.wait_for(kPatience) == std::future_status::ready) return;
    ADD_FAILURE() << "a call of the scheduler hangs";
    unblock();
    ended.wait();
  }

  SlurmStandins slurm_;
  const std::string runs_ = slurm_.directory() + "/runs";
};

TEST_F(SlurmFilesTest, AScriptThatCannotBeOpenedDelaysNoOtherCall) {
  // Opening a FIFO for writing blocks until a program reads it.
  const std::string script = runs_ + "/allocations/a/job.sh";
  std::filesystem::create_directory(runs_ + "/allocations/a");
  ASSERT_EQ(mkfifo(script.c_str(), 0600), 0);
  int reader = -1;
  const auto unblock = [&] { reader = open(script.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); };
  const auto step = [&] {
    const absl::Status refused = Submit("a").status();
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("the directory of runs ", runs_, " does not respond")));
    EXPECT_EQ(slurm_.Status("a").state, State::kUnknown) << "the job was certainly not submitted";
    EXPECT_TRUE(slurm_.scheduler().Cancel({"a"}).ok());
  };
  EndsInTime(step, unblock);
  EXPECT_EQ(slurm_.Calls("sbatch"), 0);
  if (reader < 0) unblock();
  EXPECT_TRUE(SubmitAgain("a").ok()) << "the directory responds again";
  EXPECT_EQ(slurm_.Jobs(), 1);
  close(reader);
}

TEST_F(SlurmFilesTest, AFilesystemThatHangsBlocksNoCall) {
  ASSERT_TRUE(Submit("before").ok());
  auto hanging = HangingDirectory::Mount(runs_);
  if (!hanging.ok()) GTEST_SKIP() << hanging.status();
  const auto step = [this] {
    for (const char* token : {"a", "b"}) {
      const absl::Status refused = Submit(token).status();
      EXPECT_TRUE(absl::IsUnavailable(refused)) << token << ": " << refused;
    }
    EXPECT_EQ(slurm_.Status("before").state, State::kPending);
    slurm_.set_field("1", "state", "FAILED");
    const JobStatus failed = slurm_.Status("before");
    EXPECT_EQ(failed.state, State::kFailed);
    EXPECT_THAT(failed.reason, AllOf(HasSubstr("job.out"), Not(HasSubstr("does not exist"))));
    EXPECT_TRUE(slurm_.scheduler().Cancel({"a", "b"}).ok());
    EXPECT_TRUE(slurm_.scheduler().View().ok());
    Restart();  // destroys the scheduler
    EXPECT_EQ(slurm_.Status("before").state, State::kFailed) << "the first access of the new scheduler";
  };
  EndsInTime(step, [&] { hanging->reset(); });
  EXPECT_EQ(slurm_.Calls("sbatch"), 1);
  hanging->reset();
  EXPECT_TRUE(SubmitAgain("a").ok()) << "the filesystem responds again";
  EXPECT_TRUE(std::filesystem::exists(runs_ + "/allocations/a/job.sh"));
}

}  // namespace
}  // namespace scalelab::server
