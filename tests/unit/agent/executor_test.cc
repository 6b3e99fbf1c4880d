#include "agent/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace scalelab::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Records the last program instead of running it.
class RecordingRunner final : public server::CommandRunner {
 public:
  absl::StatusOr<server::CommandResult> Run(const std::vector<std::string>& argv, const std::string& input,
                                            const std::vector<std::string>& variables,
                                            absl::Duration timeout) override {
    last_argv = argv;
    last_input = input;
    last_variables = variables;
    last_timeout = timeout;
    return result;
  }
  std::vector<std::string> last_argv, last_variables;
  std::string last_input;
  absl::Duration last_timeout;
  absl::StatusOr<server::CommandResult> result = server::CommandResult{};
};

class ExecutorTest : public testing::Test {
 protected:
  ExecutorTest() {
    std::string pattern = testing::TempDir() + "executor-XXXXXX";
    root_ = mkdtemp(pattern.data());
    runner_.result->exit_code = 0;
  }
  ~ExecutorTest() override { std::filesystem::remove_all(root_); }
  v1::ServeRequest::Answer Answer(const v1::ServeResponse& request) {
    return Executor({geteuid(), root_ + "/alice"}, runner_).Answer(request);
  }
  v1::ServeResponse Sinfo() {
    v1::ServeResponse request;
    request.set_id(7);
    request.mutable_execute()->set_program(v1::ServeResponse::Execute::SINFO);
    request.mutable_execute()->set_timeout_ms(2000);
    return request;
  }
  v1::ServeResponse Sbatch() {
    v1::ServeResponse request;
    v1::ServeResponse::Execute& execute = *request.mutable_execute();
    execute.set_program(v1::ServeResponse::Execute::SBATCH);
    for (const std::string& argument : {std::string("--dependency=singleton"), std::string("--job-name=j"),
                                        absl::StrCat("--chdir=", root_, "/alice/allocations/j")})
      execute.add_arguments(argument);
    execute.set_standard_input("#!/bin/sh\n");
    return request;
  }

  std::string root_;
  RecordingRunner runner_;
};

TEST_F(ExecutorTest, AProgramIsRunAndItsOutputIsReturned) {
  runner_.result->out = "node1\n";
  const auto answer = Answer(Sinfo());
  EXPECT_THAT(runner_.last_argv, ElementsAre("sinfo"));
  EXPECT_EQ(runner_.last_timeout, absl::Seconds(2));
  EXPECT_EQ(answer.id(), 7);
  EXPECT_EQ(answer.exit_status(), 0);
  EXPECT_EQ(answer.standard_output(), "node1\n");
  EXPECT_EQ(answer.error(), "");
}

TEST_F(ExecutorTest, ASubmissionMakesTheDirectoryOfTheJobFirst) {
  EXPECT_EQ(Answer(Sbatch()).error(), "");
  EXPECT_EQ(runner_.last_input, "#!/bin/sh\n");
  EXPECT_TRUE(std::filesystem::exists(root_ + "/alice/allocations/j/job.sh"));
}

TEST_F(ExecutorTest, WithoutADirectoryNothingIsSubmitted) {
  std::filesystem::create_directory_symlink("/tmp", root_ + "/alice");
  EXPECT_THAT(Answer(Sbatch()).error(), HasSubstr("not a directory of this user"));
  EXPECT_TRUE(runner_.last_argv.empty());
}

TEST_F(ExecutorTest, ARefusedCommandIsNotRun) {
  v1::ServeResponse request = Sinfo();
  request.mutable_execute()->add_arguments("--version; reboot");
  EXPECT_THAT(Answer(request).error(), HasSubstr("is not allowed"));
  EXPECT_TRUE(runner_.last_argv.empty());
}

TEST_F(ExecutorTest, TooMuchOutputIsAFailure) {
  runner_.result->out = std::string(4 << 20, 'x');
  const auto answer = Answer(Sinfo());
  EXPECT_EQ(answer.exit_status(), -1);
  EXPECT_EQ(answer.standard_output(), "");
  EXPECT_THAT(answer.standard_error(), HasSubstr("more than 3 MiB"));
}

TEST_F(ExecutorTest, SignalsAndTimeoutsAreReported) {
  runner_.result->exit_code = -1;
  runner_.result->signal = 9;
  EXPECT_EQ(Answer(Sinfo()).exit_status(), 137);
  runner_.result->timed_out = true;
  EXPECT_EQ(Answer(Sinfo()).exit_status(), -1);
}

TEST_F(ExecutorTest, AProgramThatIsNotOnPathIsNamedWithWhatToDo) {
  const std::string path = getenv("PATH");
  setenv("PATH", root_.c_str(), 1);
  runner_.result = absl::FailedPreconditionError("cannot start sinfo: No such file or directory");
  const std::string missing = Answer(Sinfo()).error();
  std::ofstream(root_ + "/sinfo") << "#!/no/interpreter\n";
  std::filesystem::permissions(root_ + "/sinfo", std::filesystem::perms::owner_all);
  const std::string broken = Answer(Sinfo()).error();
  setenv("PATH", path.c_str(), 1);
  EXPECT_THAT(missing, HasSubstr(absl::StrCat("sinfo is not on PATH of the agent (", root_, ")")));
  EXPECT_THAT(missing, HasSubstr("systemctl --user edit scalelab-agent"));
  EXPECT_EQ(broken, "cannot start sinfo: No such file or directory") << "the program exists";
}

TEST_F(ExecutorTest, AFileThatDoesNotExistIsNotFound) {
  v1::ServeResponse request;
  request.set_id(3);
  request.mutable_read_file()->set_directory(root_ + "/alice/1/2/t");
  request.mutable_read_file()->set_name("rank-0.out");
  request.mutable_read_file()->set_length(10);
  const auto answer = Answer(request);
  EXPECT_TRUE(answer.not_found());
  EXPECT_NE(answer.error(), "");
  EXPECT_EQ(answer.id(), 3);
}

TEST_F(ExecutorTest, AnUnknownRequestIsRefused) {
  EXPECT_THAT(Answer(v1::ServeResponse()).error(), HasSubstr("does not know"));
}

TEST_F(ExecutorTest, TheDescriptionHasNoSecret) {
  v1::ServeResponse request = Sbatch();
  (*request.mutable_execute()->mutable_environment())["SCALELAB_ALLOCATION_SECRET"] = "hidden";
  EXPECT_THAT(Describe(request), HasSubstr("sbatch --dependency=singleton --job-name=j"));
  EXPECT_THAT(Describe(request), testing::Not(HasSubstr("hidden")));
}

TEST_F(ExecutorTest, AnErrorWithAFileNameThatIsNotUtf8IsReceived) {
  const std::string attempt = root_ + "/alice/7/12/token";
  std::string deep = attempt + "/b\xe4um";  // Latin-1
  for (int i = 0; i < 70; ++i) deep += "/d";
  std::filesystem::create_directories(deep);
  v1::ServeResponse request;
  request.set_id(3);
  request.mutable_remove_files()->set_kind(v1::ServeResponse::RemoveFiles::EVERYTHING);
  request.mutable_remove_files()->set_directory(attempt);
  v1::ServeRequest message, received;
  *message.mutable_answer() = Answer(request);
  ASSERT_TRUE(received.ParseFromString(message.SerializeAsString()));
  EXPECT_EQ(received.answer().id(), 3);
  EXPECT_THAT(received.answer().error(), HasSubstr("/b?um/d/d"));
  EXPECT_THAT(received.answer().error(), HasSubstr("is too deep"));
}

TEST_F(ExecutorTest, FilesOfAnAttemptAreRemoved) {
  const std::string attempt = root_ + "/alice/7/12/token";
  std::filesystem::create_directories(attempt);
  std::ofstream(attempt + "/model") << "weights";
  v1::ServeResponse request;
  request.set_id(3);
  request.mutable_remove_files()->set_kind(v1::ServeResponse::RemoveFiles::EVERYTHING);
  request.mutable_remove_files()->set_directory(attempt);
  EXPECT_EQ(Describe(request), "remove everything of " + attempt);
  for (const bool dry_run : {true, false}) {
    EXPECT_TRUE(std::filesystem::exists(attempt + "/model"));
    request.mutable_remove_files()->set_dry_run(dry_run);
    const auto answer = Answer(request);
    v1::ServeRequest::Removed removed;
    ASSERT_TRUE(removed.ParseFromString(answer.standard_output()));
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.id(), 3);
    EXPECT_EQ(removed.directories(), 1);
    EXPECT_EQ(removed.bytes(), 7);
    EXPECT_FALSE(removed.incomplete());
  }
  EXPECT_FALSE(std::filesystem::exists(root_ + "/alice/7/12"));
  request.mutable_remove_files()->set_kind(v1::ServeResponse::RemoveFiles::EMPTY_STUDY);
  request.mutable_remove_files()->set_directory(root_ + "/alice/7");
  v1::ServeRequest::Removed study;
  ASSERT_TRUE(study.ParseFromString(Answer(request).standard_output()));
  EXPECT_TRUE(study.has_study());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/alice/7"));
  request.mutable_remove_files()->clear_kind();
  EXPECT_THAT(Answer(request).error(), HasSubstr("does not know which files"));
}

}  // namespace
}  // namespace scalelab::agent
